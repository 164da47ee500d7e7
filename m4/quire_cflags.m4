dnl SPDX-License-Identifier: Apache-2.0
dnl QUIRE_TRY_CFLAG(FLAGS, VARIABLE): appends FLAGS to VARIABLE if a program compiles and links with them.
AC_DEFUN([QUIRE_TRY_CFLAG], [
  AS_VAR_PUSHDEF([cache], [quire_cv_cflag_$1])
  AC_CACHE_CHECK([whether $CC accepts $1], [cache], [
    quire_save_CFLAGS=$CFLAGS
    CFLAGS="$CFLAGS -Werror $1"
    AC_LINK_IFELSE([AC_LANG_PROGRAM([], [])], [AS_VAR_SET([cache], [yes])], [AS_VAR_SET([cache], [no])])
    CFLAGS=$quire_save_CFLAGS
  ])
  AS_VAR_IF([cache], [yes], [AS_VAR_APPEND([$2], [" $1"])])
  AS_VAR_POPDEF([cache])
])
