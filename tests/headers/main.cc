// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0

// The check is that this program's other sources compile and link together without the library.
int main() {
  return 0;
}
