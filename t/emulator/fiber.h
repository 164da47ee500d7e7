/* fiber.h - a part of emulator.c: the stack of each thread, and the way from one to another
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef EMULATOR_FIBER_H
#define EMULATOR_FIBER_H

#include <stdlib.h>
#include <string.h>

#include "emulator.h"

enum { STACK_BYTES = 128 << 10 };

/* AddressSanitizer has to know on which stack the program is. */
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>

static const void *scheduler_stack;
static size_t scheduler_stack_bytes;

static void enter_thread(const struct emulator_thread *t)
{
    __sanitizer_start_switch_fiber(NULL, t->stack, STACK_BYTES);
}
static void leave_thread(void) { __sanitizer_start_switch_fiber(NULL, scheduler_stack, scheduler_stack_bytes); }
static void entered_thread(void) { __sanitizer_finish_switch_fiber(NULL, &scheduler_stack, &scheduler_stack_bytes); }
static void left_thread(void) { __sanitizer_finish_switch_fiber(NULL, NULL, NULL); }
static void clean_stack(void *stack) { __asan_unpoison_memory_region(stack, STACK_BYTES); }
#else
static void enter_thread(const struct emulator_thread *t) { (void)t; }
static void leave_thread(void) { }
static void entered_thread(void) { }
static void left_thread(void) { }
static void clean_stack(void *stack) { (void)stack; }
#endif

static void thread_main(void);

#if defined __x86_64__ && !defined __ILP32__ && defined __linux__
/* ucontext asks the kernel for the signal mask at each switch, which takes a hundred times as long. */
void emulator_switch(void **save, void *to);
__asm__(".pushsection .text\n"
        ".globl emulator_switch\n"
        ".type emulator_switch, @function\n"
        "emulator_switch:\n"
        "    push %rbp\n    push %rbx\n    push %r12\n    push %r13\n    push %r14\n    push %r15\n"
        "    mov %rsp, (%rdi)\n"
        "    mov %rsi, %rsp\n"
        "    pop %r15\n    pop %r14\n    pop %r13\n    pop %r12\n    pop %rbx\n    pop %rbp\n"
        "    ret\n"
        ".size emulator_switch, . - emulator_switch\n"
        ".popsection\n");

static void *scheduler;

static void make_fiber(struct emulator_thread *t)
{
    void **top = (void **)((char *)t->stack + STACK_BYTES);

    memset(top - 8, 0, 8 * sizeof *top); /* six registers; thread_main; where it would return to */
    memcpy(top - 2, &(void (*)(void)){thread_main}, sizeof *top);
    t->stack_pointer = top - 8;
}

static void run_thread(struct emulator_thread *t)
{
    emulator_self = t;
    enter_thread(t);
    emulator_switch(&scheduler, t->stack_pointer);
    left_thread();
    emulator_self = NULL;
}

static void back_to_scheduler(void)
{
    leave_thread();
    emulator_switch(&emulator_self->stack_pointer, scheduler);
    entered_thread();
}
#else
#include <ucontext.h>

static ucontext_t scheduler;

static void make_fiber(struct emulator_thread *t)
{
    ucontext_t *context = t->stack_pointer != NULL ? t->stack_pointer : calloc(1, sizeof *context);

    getcontext(context);
    context->uc_stack.ss_sp = t->stack;
    context->uc_stack.ss_size = STACK_BYTES;
    context->uc_link = NULL;
    makecontext(context, thread_main, 0);
    t->stack_pointer = context;
}

static void run_thread(struct emulator_thread *t)
{
    emulator_self = t;
    enter_thread(t);
    swapcontext(&scheduler, t->stack_pointer);
    left_thread();
    emulator_self = NULL;
}

static void back_to_scheduler(void)
{
    leave_thread();
    swapcontext(emulator_self->stack_pointer, &scheduler);
    entered_thread();
}
#endif

#endif
