# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0

# Run by CTest with cmake -P: every function that HEADER declares is called by a source in SOURCES.
file(READ ${HEADER} header)
string(REGEX REPLACE "/\\*([^*]|\\*+[^*/])*\\*+/" "" header "${header}")
string(REGEX MATCHALL "MOEBIUS_C_API[^;(]*[^a-z0-9_;(]moebius_[a-z0-9_]+\\(" declarations "${header}")
list(LENGTH declarations num_declared)
string(REGEX MATCHALL "MOEBIUS_C_API[ \n]" marks "${header}")
list(LENGTH marks num_marks)
math(EXPR num_marks "${num_marks} - 1") # its definition
if(num_declared LESS 100 OR NOT num_declared EQUAL num_marks)
  message(FATAL_ERROR "${HEADER} declares ${num_declared} functions and has ${num_marks} marks, expected as many, "
                      "and at least 100")
endif()

file(GLOB paths ${SOURCES}/*.c)
set(text "")
foreach(path IN LISTS paths)
  file(READ ${path} source)
  string(APPEND text "${source}")
endforeach()
set(missing "")
foreach(declaration IN LISTS declarations)
  string(REGEX REPLACE ".*(moebius_[a-z0-9_]+)\\($" "\\1" name "${declaration}")
  if(NOT text MATCHES "[^a-z0-9_]${name}\\(")
    list(APPEND missing ${name})
  endif()
endforeach()
if(missing)
  list(JOIN missing ", " missing)
  message(FATAL_ERROR "no test in ${SOURCES} calls ${missing}")
endif()
message(STATUS "${num_declared} functions are called")
