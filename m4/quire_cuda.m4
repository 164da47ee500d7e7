dnl SPDX-License-Identifier: Apache-2.0
dnl QUIRE_WITH_CUDA: decides whether the CUDA kernels are built, with what and for which GPUs.
dnl
dnl   --with-cuda=auto (default)  if nvcc and cuda.h are found, else a CPU-only library and a notice
dnl   --with-cuda[=yes]           an error if they are not found
dnl   --with-cuda=DIR             DIR/bin/nvcc or an error
dnl   --without-cuda              nvcc is not looked for
dnl   --with-cuda-arch=LIST       GPUs to compile for; turns auto into yes
dnl
dnl LIST is comma-separated; N gives machine code for compute capability N, ptxN the PTX that a driver
dnl compiles for N and later GPUs, N+ptx both. The default, 80,90a,ptx90:
dnl   80      machine code for 8.0, and, as it holds within a major version, 8.6, 8.7 and 8.9
dnl   90a     machine code for 9.0 (Hopper) with what only that GPU has (wgmma, setmaxnreg)
dnl   ptx90   PTX for everything after 9.0, as sm_90a code and PTX run nowhere but on 9.0; machine code
dnl           for sm_90 would be used by no GPU that 90a does not serve
dnl
dnl Sets NVCC, NVCCFLAGS, CUDA_GENCODE, CUDA_CPPFLAGS, CUDA_CONFIGURE_FLAGS (what distcheck passes on),
dnl HAVE_CUDA (conditional and config.h), CUDA_ARCH_LIST (config.h) and $quire_cuda_summary.
AC_DEFUN([QUIRE_WITH_CUDA], [
  AC_REQUIRE([AC_PROG_SED])
  AC_ARG_WITH([cuda],
    [AS_HELP_STRING([--with-cuda=auto|yes|no|DIR], [build the CUDA kernels, with the toolkit in DIR [auto]])],
    [], [with_cuda=auto])
  AC_ARG_WITH([cuda-arch],
    [AS_HELP_STRING([--with-cuda-arch=LIST], [compute capabilities to compile for [80,90a,ptx90]])],
    [AS_CASE([$with_cuda_arch],
      [yes|no|''], [AC_MSG_ERROR([--with-cuda-arch: expected a list such as 80,90a,ptx90, got "$with_cuda_arch"])])
     AS_CASE([$with_cuda], [auto], [with_cuda=yes],
       [no], [AC_MSG_ERROR([--with-cuda-arch makes no sense with --without-cuda])])],
    [with_cuda_arch=80,90a,ptx90])
  AC_ARG_VAR([NVCC], [CUDA compiler command])
  AC_ARG_VAR([NVCCFLAGS], [CUDA compiler flags [-O3]])
  : "${NVCCFLAGS=-O3}"

  quire_cuda_missing=
  CUDA_CPPFLAGS=
  CUDA_GENCODE=
  AS_CASE([$with_cuda],
    [no], [quire_cuda_missing="--without-cuda"],
    [auto|yes], [
      AS_IF([test -z "$NVCC"],
        [AC_PATH_PROG([NVCC], [nvcc], [],
          [$PATH$PATH_SEPARATOR${CUDA_HOME:-/nonexistent}/bin$PATH_SEPARATOR/usr/local/cuda/bin])])
      AS_IF([test -z "$NVCC"],
        [quire_cuda_missing="found no nvcc in PATH, \$CUDA_HOME/bin or /usr/local/cuda/bin"])],
    [/*], [
      AS_IF([test -n "$NVCC" && test "x$NVCC" != "x$with_cuda/bin/nvcc"],
        [AC_MSG_ERROR([NVCC=$NVCC contradicts --with-cuda=$with_cuda])])
      NVCC=$with_cuda/bin/nvcc
      AS_IF([test -x "$NVCC"], [], [quire_cuda_missing="found no $NVCC"])],
    [AC_MSG_ERROR([--with-cuda: expected auto, yes, no or an absolute folder, got "$with_cuda"])])

  dnl nvcc may be a wrapper or a link: it knows best where its toolkit is.
  AS_IF([test -z "$quire_cuda_missing"], [
    AC_MSG_CHECKING([for the CUDA toolkit of $NVCC])
    quire_cuda_top=`$NVCC -dryrun -x cu -c /dev/null -o /dev/null 2>&1 | $SED -n 's/^#@S|@ TOP=//p'`
    AS_IF([test -n "$quire_cuda_top"], [quire_cuda_top=`cd "$quire_cuda_top" 2>/dev/null && pwd`])
    AS_IF([test -z "$quire_cuda_top"],
      [AC_MSG_RESULT([none]); quire_cuda_missing="$NVCC does not run"],
      [AC_MSG_RESULT([$quire_cuda_top])
       CUDA_CPPFLAGS="-isystem $quire_cuda_top/include"
       quire_save_CPPFLAGS=$CPPFLAGS
       CPPFLAGS="$CPPFLAGS $CUDA_CPPFLAGS"
       AC_CHECK_HEADER([cuda.h], [], [quire_cuda_missing="found no cuda.h in $quire_cuda_top/include"])
       AS_IF([test -z "$quire_cuda_missing"],
         [AC_MSG_CHECKING([for CUDA 12.4 or later])
          AC_COMPILE_IFELSE([AC_LANG_SOURCE([[
#include <cuda.h>
#if CUDA_VERSION < 12040
#error too old
#endif
]])],
            [AC_MSG_RESULT([yes])],
            [AC_MSG_RESULT([no]); quire_cuda_missing="the toolkit in $quire_cuda_top is older than 12.4"])])
       CPPFLAGS=$quire_save_CPPFLAGS])
  ])

  dnl A trial compile, not a list: nvcc --list-gpu-code leaves out sm_90a and its like.
  AS_IF([test -z "$quire_cuda_missing"], [
    echo 'extern "C" __global__ void conftest(int *p) { *p = 1; }' > conftest.cu
    for quire_arch in `AS_ECHO(["$with_cuda_arch"]) | tr , ' '`; do
      quire_cc=`AS_ECHO(["$quire_arch"]) | $SED 's/^ptx//;s/+ptx$//'`
      AS_CASE([$quire_cc], [*[[!0-9a-z]]*|''|[[!0-9]]*],
        [AC_MSG_ERROR([--with-cuda-arch: expected entries such as 80, 90a, ptx90 or 90+ptx, got "$quire_arch"])])
      quire_gencode=
      AS_CASE([$quire_arch], [ptx*], [],
        [AS_VAR_APPEND([quire_gencode], [" -gencode arch=compute_$quire_cc,code=sm_$quire_cc"])])
      AS_CASE([$quire_arch], [*ptx*],
        [AS_VAR_APPEND([quire_gencode], [" -gencode arch=compute_$quire_cc,code=compute_$quire_cc"])])
      AC_MSG_CHECKING([whether $NVCC compiles for $quire_arch])
      AS_IF([AM_RUN_LOG([$NVCC $NVCCFLAGS $quire_gencode -fatbin -o conftest.fatbin conftest.cu])],
        [AC_MSG_RESULT([yes]); AS_VAR_APPEND([CUDA_GENCODE], [" $quire_gencode"])],
        [AC_MSG_RESULT([no])
         AS_IF([test "x$with_cuda" = xauto],
           [quire_cuda_missing="$NVCC does not compile for $quire_arch, see config.log"; break],
           [AC_MSG_ERROR([$NVCC does not compile for $quire_arch, see config.log])])])
    done
    dnl nvcc 12.8 and later; read by drivers of CUDA 12.4 and later. A fifth of the size.
    AS_IF([test -z "$quire_cuda_missing"], [
      AC_MSG_CHECKING([whether $NVCC accepts --compress-mode=size])
      AS_IF([AM_RUN_LOG([$NVCC $NVCCFLAGS --compress-mode=size $quire_gencode -fatbin -o conftest.fatbin conftest.cu])],
        [AC_MSG_RESULT([yes]); AS_VAR_APPEND([CUDA_GENCODE], [" --compress-mode=size"])],
        [AC_MSG_RESULT([no])])])
    rm -f conftest.cu conftest.fatbin
  ])

  AS_IF([test -z "$quire_cuda_missing"],
    [AC_DEFINE([HAVE_CUDA], [1], [Define to 1 if the CUDA kernels are part of the library.])
     AC_DEFINE_UNQUOTED([CUDA_ARCH_LIST], ["$with_cuda_arch"], [What the CUDA kernels were compiled for, "" without.])
     CUDA_CONFIGURE_FLAGS="--with-cuda=$quire_cuda_top --with-cuda-arch=$with_cuda_arch"
     quire_cuda_summary="yes, for $with_cuda_arch ($NVCC)"],
    [AS_CASE([$with_cuda],
       [auto], [AC_MSG_NOTICE([CUDA kernels are left out: $quire_cuda_missing])],
       [no], [],
       [AC_MSG_ERROR([--with-cuda: $quire_cuda_missing])])
     AC_DEFINE([CUDA_ARCH_LIST], [""])
     CUDA_CONFIGURE_FLAGS=--without-cuda
     quire_cuda_summary="no ($quire_cuda_missing)"])
  AM_CONDITIONAL([HAVE_CUDA], [test -z "$quire_cuda_missing"])
  AC_SUBST([CUDA_CPPFLAGS])
  AC_SUBST([CUDA_GENCODE])
  AC_SUBST([CUDA_CONFIGURE_FLAGS])
])
