// SPDX-License-Identifier: GPL-2.0
/*
 * The mechanism of thread scheduling: sends an agent messages about threads, and carries out its decisions.
 *
 * The protocol is wave-core's (core/src/host.rs, queue.rs, layout/mod.rs); the loader computes where everything is in
 * the window. Each thread waits in its own dispatch queue (DSQ), so that finding it takes one look-up.
 *
 *   enqueue: thread's DSQ, message NEW, WAKEUP, PREEMPT or YIELD      | without an agent: the host's FIFO
 *   dispatch: FIFO first; then the core's next decision, checked, moved to the CPU, answered
 *
 * The map `threads` is the source of truth on which threads run where; no agent can write it. A thread that may not
 * run on every core of the enclave, or for which there is no slot, stays with the host and runs from the FIFO.
 *
 * Enclaves have disjoint CPUs. Each has its own window, agent and FIFO; `at` is a core's index among the cores of
 * all enclaves. The loader says which enclave a thread joins (`enclave_of_task`), and children inherit it.
 *
 * Threads join one by one, or the scheduler has all threads of the machine (`wave_all`). Then only the real-time
 * classes are above it, and the host itself gives precedence to kernel threads, the loader and agents.
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

/* The same for all threads of the machine. The loader picks one of the two. */
SEC(".struct_ops.link")
struct sched_ext_ops wave_all = {
	CALLBACKS
	.flags = SCX_OPS_ENQ_LAST,
	.timeout_ms = 30000,
	.name = "wave_all",
};
