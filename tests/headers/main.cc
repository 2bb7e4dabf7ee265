// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0

// The other sources of this program must compile and link together without the library.
int main() {
  return 0;
}
