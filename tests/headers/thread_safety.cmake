# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0

# cmake -DHEADERS=<folder> -P thread_safety.cmake: fails unless each header says what threads may do with it.
file(GLOB headers ${HEADERS}/*.h)
if(NOT headers)
  message(FATAL_ERROR "no headers in ${HEADERS}")
endif()
foreach(header IN LISTS headers)
  file(READ ${header} text)
  if(NOT text MATCHES "// (.*  )?Thread-safety: ")
    message(SEND_ERROR "${header} does not state its thread-safety")
  endif()
endforeach()
