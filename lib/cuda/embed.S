/* embed.S - one file's bytes as read-only data of the library
 * SPDX-License-Identifier: Apache-2.0
 *
 * -DBLOB_NAME=x -DBLOB_FILE="path" defines the hidden symbols fatbin_x, the bytes, and fatbin_x_size,
 * their number as 64 bits. The path is relative to the folder the compiler runs in.
 */
#define PASTE1(a, b, c) a##b##c
#define PASTE(a, b, c) PASTE1(a, b, c)
#define DATA PASTE(fatbin_, BLOB_NAME, )
#define SIZE PASTE(fatbin_, BLOB_NAME, _size)

    .section .rodata
    .balign 64
    .globl DATA
    .hidden DATA
    .type DATA, %object
DATA:
    .incbin BLOB_FILE
0:
    .size DATA, 0b - DATA

    .balign 8
    .globl SIZE
    .hidden SIZE
    .type SIZE, %object
SIZE:
    .quad 0b - DATA
    .size SIZE, 8

    .section .note.GNU-stack,"",%progbits
