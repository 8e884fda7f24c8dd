// SPDX-License-Identifier: GPL-2.0
/*
 * The mechanism of thread scheduling: tells an agent what happens to threads, and carries out what it decides.
 *
 * The protocol is wave-core's (core/src/host.rs, queue.rs, layout.rs); the loader computes where everything lies
 * in the window. Each thread waits in a dispatch queue (DSQ) of its own, so that finding it takes one look-up.
 *
 *   enqueue: thread's DSQ, message NEW, WAKEUP, PREEMPT or YIELD      | without an agent: the host's FIFO
 *   dispatch: FIFO first; then the core's next decision, checked, moved to the CPU, answered
 *
 * Who is running, and where, is in `threads`: the truth, which no agent can write. A thread that may not run on
 * every core of the enclave, or for which there is no slot, stays with the host and runs from the FIFO.
 *
 * Enclaves are CPUs that belong to no other. Each has a window, an agent and a FIFO of its own; `at` is a core among
 * those of all of them. Which enclave a thread joins is said by the loader (`enclave_of_task`), and inherited.
 *
 * Threads come one by one, or all of the machine's (`wave_all`). Then there is no class above but the real-time ones,
 * and kernel threads, the loader and agents come first by the host's hand.
 */
#include "scx.h"

char LICENSE[] SEC("license") = "GPL";

#include "sched/state.h"
#include "sched/queue.h"
#include "sched/threads.h"
#include "sched/cores.h"
#include "sched/control.h"

#define CALLBACKS \
	.select_cpu = (void *)wave_select_cpu, \
	.enqueue = (void *)wave_enqueue, \
	.dispatch = (void *)wave_dispatch, \
	.running = (void *)wave_running, \
	.stopping = (void *)wave_stopping, \
	.quiescent = (void *)wave_quiescent, \
	.yield = (void *)wave_yield, \
	.set_cpumask = (void *)wave_set_cpumask, \
	.init_task = (void *)wave_init_task, \
	.enable = (void *)wave_enable, \
	.disable = (void *)wave_disable, \
	.cpu_online = (void *)wave_cpu_online, \
	.cpu_offline = (void *)wave_cpu_offline, \
	.init = (void *)wave_init, \
	.exit = (void *)wave_exit,

SEC(".struct_ops.link")
struct sched_ext_ops wave = {
	CALLBACKS
	.flags = SCX_OPS_SWITCH_PARTIAL | SCX_OPS_ENQ_LAST,
	.timeout_ms = 30000,
	.name = "wave",
};

/* The same, for all threads of the machine: the loader takes one of the two. */
SEC(".struct_ops.link")
struct sched_ext_ops wave_all = {
	CALLBACKS
	.flags = SCX_OPS_ENQ_LAST,
	.timeout_ms = 30000,
	.name = "wave_all",
};
