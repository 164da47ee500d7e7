/* struct_size: callers built against an older or a newer header.
 * SPDX-License-Identifier: Apache-2.0 */
#include "fixture.h"
#include "tap.h"

enum { V1 = 160 }; /* sizeof(quire_decode_args) of version 1, which no later header may raise */

int main(void)
{
    static const size_t wrong[] = {0, 1, 8, V1 - 8, V1 - 4, V1 - 1, V1 + 1, V1 + 4, 1 << 20, SIZE_MAX, SIZE_MAX - 7};
    struct fixture *f = fixture_new(&SMALL);
    struct {
        quire_decode_args args;
        unsigned char later[64];
    } newer;
    size_t bytes;

    plan(0);
    ok(sizeof f->args >= V1, "the struct only grows");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        f->args.struct_size = wrong[i];
        is_int(QUIRE_ERROR_VALUE, quire_decode(&f->args, NULL), "struct_size %zu", wrong[i]);
        ok(strstr(quire_last_error(), "struct_size: expected sizeof(quire_decode_args), here ") != NULL, "its words");
        is_int(QUIRE_ERROR_VALUE, quire_decode_workspace_size(&f->args, &bytes), "and in workspace_size");
    }
    f->args.struct_size = V1;
    is_int(QUIRE_OK, quire_decode(&f->args, NULL), "struct_size of version 1");

    memset(&newer, 0, sizeof newer);
    newer.args = f->args;
    newer.args.struct_size = sizeof newer;
    is_int(QUIRE_OK, quire_decode(&newer.args, NULL), "a larger struct with a tail of zeros");
    for (size_t i = 0; i < sizeof newer.later; i += 21) {
        memset(newer.later, 0, sizeof newer.later);
        newer.later[i] = 1;
        is_int(QUIRE_ERROR_UNSUPPORTED, quire_decode(&newer.args, NULL),
               "a larger struct with byte %zu of its tail set", i);
    }
    ok(strstr(quire_last_error(), quire_version()) != NULL, "its words name this version");
    newer.args.struct_size = V1;
    is_int(QUIRE_OK, quire_decode(&newer.args, NULL), "what lies behind struct_size is not looked at");

    quire_verdict verdict = {.struct_size = sizeof verdict - 8};
    is_int(QUIRE_ERROR_VALUE, quire_decode_verify(&f->args, &verdict), "a verdict too small");
    verdict.struct_size = sizeof verdict;
    is_int(QUIRE_OK, quire_decode_verify(&f->args, &verdict), "a verdict of this version");
    fixture_free(f);
    return done();
}
