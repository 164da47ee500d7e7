/* status.c - status names, and the thread's last message
 * SPDX-License-Identifier: Apache-2.0 */
#include "status.h"

#include <stdarg.h>
#include <stdio.h>

/* Long enough for a driver's own words behind ours; a longer message is cut. */
static _Thread_local char message[1024];

quire_status quire_fail(quire_status status, const char *format, ...)
{
    va_list list;

    va_start(list, format);
    vsnprintf(message, sizeof message, format, list);
    va_end(list);
    return status;
}

const char *quire_last_error(void)
{
    return message;
}

const char *quire_status_name(quire_status status)
{
    switch (status) {
    case QUIRE_OK: return "QUIRE_OK";
    case QUIRE_ERROR_TYPE: return "QUIRE_ERROR_TYPE";
    case QUIRE_ERROR_VALUE: return "QUIRE_ERROR_VALUE";
    case QUIRE_ERROR_UNSUPPORTED: return "QUIRE_ERROR_UNSUPPORTED";
    case QUIRE_ERROR_DEVICE: return "QUIRE_ERROR_DEVICE";
    case QUIRE_ERROR_MEMORY: return "QUIRE_ERROR_MEMORY";
    }
    return "unknown status";
}
