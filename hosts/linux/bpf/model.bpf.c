// SPDX-License-Identifier: GPL-2.0
/*
 * The queues of sched.bpf.c, step by step, for a test that compares them with wave-core's
 * (hosts/linux/src/sched/object/model_tests.rs). Only wave_step is loaded, and it needs no sched_ext: the outcome of a
 * decision is not looked up in a DSQ, but given in the decision itself.
 */
#define COMMIT(at, slot, generation, sequence, argument) ((void)(slot), (u32)(argument))
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#pragma clang diagnostic ignored "-Wunused-function"
/* Kernels without sched_ext do not have its functions. */
#undef __ksym
#define __ksym __attribute__((section(".ksyms"), weak))
#include "sched.bpf.c"

/* Like serve_core, without the calls to the kernel. */
static __always_inline void dispatch(u32 at, struct core *core)
{
	int looks, found = REFUSED;
	bpf_for(looks, 0, LOOKS_MAX)
	{
		if (found == REFUSED)
			found = look(at);
	}
	if (found == NOTHING && !(core->record & 1 << 24))
		ask(at);
}

SEC("syscall")
int wave_step(struct step *step)
{
	u32 at = step->at;
	struct entry entry = step->entry;
	struct control *control = control_of(0);
	struct core *core = bpf_map_lookup_elem(&core_states, &at);
	if (!control)
		return 1;
	if (step->operation == SEND)
		return push(0, at, step->tag, &entry);
	if (!core)
		return 1;
	come_over(core, control);
	if (step->operation == DISPATCH)
		dispatch(at, core);
	else if (READ(core->offline))
		refuse(at);
	return 0;
}
