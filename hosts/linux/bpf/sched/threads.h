// SPDX-License-Identifier: GPL-2.0
/* Threads: their states, and the messages about them. Part of sched.bpf.c. */

static __always_inline u64 state_of(u64 word)
{
	return word >> 32 & 0xff;
}

static __always_inline u64 word_of(u32 sequence, u64 state, u32 core)
{
	return (u64)core << 48 | state << 32 | sequence;
}

static __always_inline u32 this_context(u32 enclave)
{
	u32 cpu = bpf_get_smp_processor_id();
	return places_of(enclave)->context_of_cpu[cpu & (CPUS_MAX - 1)];
}

static __always_inline u32 core_here(void)
{
	u32 cpu = bpf_get_smp_processor_id();
	return layout.core_of_cpu[cpu & (CPUS_MAX - 1)];
}

/* This CPU's core number in the enclave; 0xffff if it is not one of the enclave's cores. */
static __always_inline u32 place_in(u32 enclave)
{
	u32 at = core_here();
	return at < all_cores && enclave_of_core(at) == enclave ? own_number(at) : 0xffff;
}

/* Moves a thread to a new state, and sends the message. */
static __always_inline void tell(struct thread *thread, u32 slot, u64 state, u64 kind, u64 ran_ns)
{
	u32 sequence = (u32)thread->word + 1;
	__sync_lock_test_and_set(&thread->word, word_of(sequence, state, 0));
	u64 place = place_in(thread->enclave);
	struct entry entry = { {
		(u64)thread->generation << 32 | slot,
		place << 32 | sequence,
		ran_ns,
	} };
	push(thread->enclave, this_context(thread->enclave), kind << 16 | 5, &entry);
}

/* A task's slot, with its enclave in the upper bits, is stored in dsq_vtime, where sched_ext keeps an order that is not
 * used here. It may be an old slot, so the slot itself says which task owns it. */
static __always_inline struct thread *thread_of(struct task_struct *p, u32 *slot)
{
	*slot = p->scx.dsq_vtime;
	struct thread *thread = bpf_map_lookup_elem(&threads, slot);
	return thread && thread->task == (u64)p ? thread : 0;
}

/* Whether the task may run on every core of the enclave. */
static __always_inline bool fits(u32 enclave, const struct cpumask *mask, s32 allowed)
{
	const volatile struct places *places = places_of(enclave);
	if (allowed >= (s32)layout.cpus_possible)
		return true;
	for (u32 core = 0; core < CPUS_MAX && core < places->cores; core++) {
		if (!bpf_cpumask_test_cpu(cpu_of(places->first_core + core), mask))
			return false;
	}
	return true;
}

/* Whether a task waits for no decision although the scheduler has all threads: kernel threads, the loader, agents. */
static __always_inline bool comes_first(struct task_struct *p)
{
	if (!layout.everything)
		return false;
	if (p->flags & PF_KTHREAD)
		return true;
	u32 *enclave = bpf_task_storage_get(&enclave_of_task, p, 0, 0);
	return enclave && *enclave == NO_ENCLAVE;
}

static __always_inline u32 enclave_of(struct task_struct *p)
{
	u32 enclave = p->scx.dsq_vtime >> 32;
	return enclave < layout.enclaves ? enclave : 0;
}

static __always_inline void join(struct task_struct *p, u32 enclave)
{
	u32 slot;
	struct control *control = control_of(enclave);
	if (!control)
		return;
	/* An enclave must not take more than its share of slots. */
	if (__sync_fetch_and_add(&control->held, 1) >= subjects / layout.enclaves ||
	    bpf_map_pop_elem(&free_slots, &slot)) {
		__sync_fetch_and_add(&control->held, -1);
		__sync_fetch_and_add(&control->without_slot, 1);
		return;
	}
	struct thread *thread = bpf_map_lookup_elem(&threads, &slot);
	if (!thread) {
		__sync_fetch_and_add(&control->held, -1);
		return;
	}
	set_note(p, (u64)enclave << 32 | slot);
	thread->task = (u64)p;
	thread->enclave = enclave;
	thread->generation++;
	thread->pid = p->pid;
	thread->fresh = 1;
	thread->yielded = thread->in_fifo = thread->narrow = 0;
	thread->early = 0;
	/* No message until the thread is runnable. */
	__sync_lock_test_and_set(&thread->word, word_of((u32)thread->word, STATE_FREE, 0));
}

static __always_inline void leave(struct task_struct *p, u64 kind)
{
	u32 slot;
	struct thread *thread = thread_of(p, &slot);
	if (!thread)
		return;
	if (!thread->fresh)
		tell(thread, slot, STATE_FREE, kind, 0);
	thread->task = 0;
	thread->fresh = 0;
	thread->pid = 0;
	struct control *control = control_of(thread->enclave);
	if (control)
		__sync_fetch_and_add(&control->held, -1);
	bpf_map_push_elem(&free_slots, &slot, BPF_ANY);
}

/* The loader's entry for a task also holds for children that the task starts before it joins. Sleepable: kernels before
 * 6.19 then wait for the entry's memory, so that fork() fails less often. */
s32 STRUCT_OPS_SLEEPABLE(wave_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	struct task_struct *parent = bpf_get_current_task_btf();
	if (!args->fork || parent->policy == SCHED_EXT)
		return 0;
	u32 *parents = bpf_task_storage_get(&enclave_of_task, parent, 0, 0);
	if (!parents)
		return 0;
	u32 *enclave = bpf_task_storage_get(&enclave_of_task, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!enclave)
		return -12 /* ENOMEM */;
	*enclave = *parents;
	return 0;
}

void STRUCT_OPS(wave_enable, struct task_struct *p)
{
	/* The parent enables a child, which belongs to the parent's enclave. */
	struct task_struct *parent = bpf_get_current_task_btf();
	u32 *said = bpf_task_storage_get(&enclave_of_task, p, 0, 0);
	u32 enclave = 0;
	if (said && *said < layout.enclaves)
		enclave = *said;
	else if (parent != p && parent->policy == SCHED_EXT)
		enclave = enclave_of(parent);
	set_note(p, (u64)enclave << 32);
	if (!comes_first(p) && fits(enclave, p->cpus_ptr, p->nr_cpus_allowed))
		join(p, enclave);
}

void STRUCT_OPS(wave_disable, struct task_struct *p)
{
	leave(p, p->flags & PF_EXITING ? KIND_DEAD : KIND_DEPARTED);
}

void STRUCT_OPS(wave_set_cpumask, struct task_struct *p, const struct cpumask *mask)
{
	u32 slot, enclave = enclave_of(p);
	struct thread *thread = thread_of(p, &slot);
	bool fitting = !comes_first(p) && fits(enclave, p->cpus_ptr, p->nr_cpus_allowed);
	if (fitting && !thread) {
		join(p, enclave);
	} else if (!fitting && thread) {
		thread->narrow = 1;
		leave(p, KIND_DEPARTED);
	}
}

/* Chooses no CPU for a wakeup: the agent decides that. */
s32 STRUCT_OPS(wave_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	return prev_cpu;
}

/* Wakes sleeping cores on which a task of the FIFO may run. */
static __always_inline void kick_for(u32 enclave, struct task_struct *p)
{
	const volatile struct places *places = places_of(enclave);
	for (u32 core = 0; core < CPUS_MAX && core < places->cores; core++) {
		u32 cpu = cpu_of(places->first_core + core);
		if (bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
			scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
	}
}

void STRUCT_OPS(wave_enqueue, struct task_struct *p, u64 enq_flags)
{
	u32 slot = 0;
	struct thread *thread = thread_of(p, &slot);
	u32 enclave = thread ? thread->enclave : enclave_of(p);
	struct control *control = control_of(enclave);
	if (comes_first(p)) {
		/* An agent was an ordinary thread until it attached. */
		leave(p, KIND_DEPARTED);
		/* It runs at once when it wakes, as if in a higher class; such tasks take turns among themselves. */
		u64 at_once = enq_flags & SCX_ENQ_WAKEUP ? SCX_ENQ_PREEMPT : 0;
		dsq_insert(p, SCX_DSQ_LOCAL, SCX_SLICE_DFL, enq_flags | at_once);
		return;
	}
	if (!thread || !control) {
		const volatile struct places *places = places_of(enclave);
		bool inside = false;
		for (u32 core = 0; core < CPUS_MAX && core < places->cores; core++)
			inside |= bpf_cpumask_test_cpu(cpu_of(places->first_core + core), p->cpus_ptr);
		if (!inside) {
			dsq_insert(p, SCX_DSQ_GLOBAL, SCX_SLICE_DFL, enq_flags);
			return;
		}
		dsq_insert(p, FIFO_DSQ + enclave, SCX_SLICE_DFL, enq_flags);
		kick_for(enclave, p);
		return;
	}
	u64 before = state_of(thread->word);
	bool runs_on = before == STATE_RUNNING && (enq_flags & ENQUEUE_RESTORE) && p->on_cpu;
	bool parks = READ(control->agent_decides);
	thread->in_fifo = !parks;
	thread->early = 0;
	thread->stuck = 0;
	thread->slice = 0;
	if (parks)
		dsq_insert(p, FIRST_DSQ + slot, SCX_SLICE_INF, enq_flags);
	else
		dsq_insert(p, FIFO_DSQ + enclave, SCX_SLICE_DFL, enq_flags);
	if (!parks)
		kick_for(enclave, p);
	/* Only its attributes changed: it ran and continues, or it waited and still waits. */
	if (runs_on || (before == STATE_RUNNABLE && !thread->fresh))
		return;
	u64 kind = KIND_WAKEUP;
	u64 ran_ns = 0;
	if (thread->fresh) {
		kind = KIND_NEW;
	} else if (before == STATE_RUNNING) {
		kind = thread->yielded ? KIND_YIELD : KIND_PREEMPT;
		ran_ns = thread->ran_ns;
	}
	thread->fresh = thread->yielded = 0;
	tell(thread, slot, STATE_RUNNABLE, kind, ran_ns);
}

void STRUCT_OPS(wave_running, struct task_struct *p)
{
	u32 slot;
	struct thread *thread = thread_of(p, &slot);
	u32 at = core_here();
	struct core *core = bpf_map_lookup_elem(&core_states, &at);
	if (thread) {
		u32 place = place_in(thread->enclave);
		thread->started_ns = bpf_ktime_get_ns();
		if (thread->slice) {
			set_slice(p, thread->slice);
			thread->slice = 0;
		}
		if (state_of(thread->word) != STATE_RUNNING || thread->word >> 48 != place)
			__sync_lock_test_and_set(&thread->word, word_of((u32)thread->word, STATE_RUNNING, place));
	}
	/* No decision began this run: the agent must not believe that the core still asks. */
	if (at < all_cores && core && READ(core->record) & 1 << 24)
		__sync_lock_test_and_set(&core->record, (core->record & ~(1ull << 24)) + (1ull << 32));
}

void STRUCT_OPS(wave_stopping, struct task_struct *p, bool runnable)
{
	u32 slot;
	struct thread *thread = thread_of(p, &slot);
	if (thread)
		thread->ran_ns = bpf_ktime_get_ns() - thread->started_ns;
}

bool STRUCT_OPS(wave_yield, struct task_struct *from, struct task_struct *to)
{
	u32 slot;
	struct thread *thread = thread_of(from, &slot);
	if (thread)
		thread->yielded = 1;
	return false;
}

void STRUCT_OPS(wave_quiescent, struct task_struct *p, u64 deq_flags)
{
	u32 slot;
	struct thread *thread = thread_of(p, &slot);
	if (!thread || !(deq_flags & SCX_DEQ_SLEEP))
		return;
	if (thread->fresh) {
		/* The thread was running when it joined, and no agent has heard of it yet. */
		__sync_lock_test_and_set(&thread->word, word_of((u32)thread->word, STATE_FREE, 0));
		return;
	}
	u64 before = state_of(thread->word);
	thread->yielded = 0;
	tell(thread, slot, STATE_BLOCKED, KIND_BLOCKED, before == STATE_RUNNING ? thread->ran_ns : 0);
}
