/* args.h - the versions of the public structs
 *
 * Structs only grow at their end, by whole fields whose default is zero bytes, so a caller's size tells
 * its version.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef QUIRE_ARGS_H
#define QUIRE_ARGS_H

#include "quire.h"

/* Copies what this version knows of a caller's arguments; what an older caller does not have is zero, and
 * what a newer one has beyond must be. */
quire_status args_read(const quire_decode_args *from, quire_decode_args *to);

/* Whether struct_size is one that a version of the struct `type` has or may have; `known` bytes today. */
quire_status args_struct_size(const char *type, size_t got, size_t version_1, size_t known);

/* Hands a result to the caller's struct, as much of it as struct_size, which stays, says it has. Both
 * structs begin with a size_t struct_size. */
void args_fill(void *callers, const void *result, size_t known);

#endif
