/* tap.h - Test Anything Protocol for the C tests
 *
 * The wanted value comes first, then the one that came; the description is a printf format.  A program
 * ends with `return done();`.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TAP_H
#define TAP_H

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int tap_planned, tap_run, tap_failed;

/* The number of tests to come; 0 if the end shall tell. */
static inline void plan(int tests)
{
    setvbuf(stdout, NULL, _IOLBF, 0); /* so that a crash shows the last test that ran */
    tap_planned = tests;
    if (tests > 0)
        printf("1..%d\n", tests);
}

static inline bool tap_result(bool right, const char *format, va_list list)
{
    tap_run++;
    tap_failed += !right;
    printf("%sok %d - ", right ? "" : "not ", tap_run);
    vprintf(format, list);
    putchar('\n');
    return right;
}

#define TAP_FORMAT(at) __attribute__((format(printf, at, at + 1), unused))
#define TAP_REPORT(right)                                                                                              \
    va_list list;                                                                                                      \
    va_start(list, format);                                                                                            \
    tap_result(right, format, list);                                                                                   \
    va_end(list)

TAP_FORMAT(1) static void diag(const char *format, ...)
{
    va_list list;

    va_start(list, format);
    fputs("# ", stdout);
    vprintf(format, list);
    putchar('\n');
    va_end(list);
}

TAP_FORMAT(2) static bool ok(bool right, const char *format, ...)
{
    TAP_REPORT(right);
    return right;
}

TAP_FORMAT(3) static bool is_int(long long wanted, long long got, const char *format, ...)
{
    TAP_REPORT(wanted == got);
    if (wanted != got)
        diag("wanted %lld, got %lld", wanted, got);
    return wanted == got;
}

TAP_FORMAT(3) static bool is_str(const char *wanted, const char *got, const char *format, ...)
{
    bool right = got != NULL && strcmp(wanted, got) == 0;

    TAP_REPORT(right);
    if (!right)
        diag("wanted \"%s\", got \"%s\"", wanted, got != NULL ? got : "(NULL)");
    return right;
}

/* Within `epsilon`; NaN is nothing. */
TAP_FORMAT(4) static bool is_double(double wanted, double got, double epsilon, const char *format, ...)
{
    bool right = wanted == got || fabs(wanted - got) <= epsilon;

    TAP_REPORT(right);
    if (!right)
        diag("wanted %.9g, got %.9g", wanted, got);
    return right;
}

TAP_FORMAT(1) static void skip(const char *format, ...)
{
    va_list list;

    va_start(list, format);
    printf("ok %d # SKIP ", ++tap_run);
    vprintf(format, list);
    putchar('\n');
    va_end(list);
}

static inline int done(void)
{
    if (tap_planned == 0)
        printf("1..%d\n", tap_run);
    return tap_failed > 0 || (tap_planned > 0 && tap_planned != tap_run);
}

#endif
