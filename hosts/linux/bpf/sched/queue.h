// SPDX-License-Identifier: GPL-2.0
/* Pushes entries into the queues of messages. Part of sched.bpf.c. */

#define READ(x) (*(const volatile typeof(x) *)&(x))
#define WRITE(x, value) (*(volatile typeof(x) *)&(x) = (value))

static __always_inline const volatile struct places *places_of(u32 enclave)
{
	return &layout.places[enclave & (ENCLAVES_MAX - 1)];
}

static __always_inline struct control *control_of(u32 enclave)
{
	return bpf_map_lookup_elem(&control, &enclave);
}

static __always_inline u32 enclave_of_core(u32 at)
{
	return layout.enclave_of_core[at & (CPUS_MAX - 1)];
}

static __always_inline u32 cpu_of(u32 at)
{
	return layout.cpu_of_core[at & (CPUS_MAX - 1)];
}

/* The number of a core within its enclave, as its agent knows it. */
static __always_inline u32 own_number(u32 at)
{
	return at - places_of(enclave_of_core(at))->first_core;
}

static __always_inline void ring(u32 enclave, u64 what)
{
	void *bell = bpf_map_lookup_elem(&bells, &enclave);
	if (bell)
		bpf_ringbuf_output(bell, &what, sizeof(what), BPF_RB_FORCE_WAKEUP);
}

/* A full fence: the agent sees all earlier stores before any later load is done. An atomic exchange is such a fence by
 * itself. But an emulator that runs all CPUs in one thread turns exchanges into plain stores, as no other CPU can tell
 * the difference; an agent outside the machine can. There, reading the clock takes a lock, which is a fence. */
static __always_inline void fence(const volatile struct places *places)
{
	if (places->clock_is_fence)
		bpf_ktime_get_ns();
}

/* The window of an epoch, if there is one. */
static __always_inline void *window_of(u32 enclave, u64 epoch)
{
	u32 at = enclave * WINDOWS + epoch % WINDOWS;
	return bpf_map_lookup_elem(&windows, &at);
}

static __always_inline struct line *line_at(void *window, u32 at)
{
	return bpf_map_lookup_elem(window, &at);
}

static __always_inline u64 far_rings_of(u32 enclave, u64 epoch)
{
	u32 at = enclave * WINDOWS + epoch % WINDOWS;
	u64 *far = bpf_map_lookup_elem(&far_rings, &at);
	return far ? READ(*far) : 0;
}

static __always_inline void lose(struct control *control, u32 enclave)
{
	if (!READ(control->lost)) {
		WRITE(control->lost, 1);
		ring(enclave, BELL_CONTROL);
	}
}

static __always_inline void blame(struct control *control, u32 enclave)
{
	if (!READ(control->fault)) {
		WRITE(control->fault, 1);
		ring(enclave, BELL_CONTROL);
	}
}

/* The index into this window's queue that is in `word`; 0 if the word belongs to another window. */
static __always_inline u64 index_of(u64 word, u64 epoch)
{
	return word >> INDEX_BITS == (epoch & 0xffff) ? word & ((1ull << INDEX_BITS) - 1) : 0;
}

/* Pushes an entry into a context's queue of messages if there is an agent, and rings the agent if it is parked. */
static __noinline int push(u32 enclave, u32 at, u64 tag, struct entry *entry)
{
	u32 key = enclave * CONTEXTS_MAX + at;
	const volatile struct places *places = places_of(enclave);
	struct control *control = control_of(enclave);
	struct context *context = bpf_map_lookup_elem(&contexts, &key);
	if (!control || !context || !entry)
		return 0;
	u64 epoch = READ(control->epoch);
	void *window = window_of(enclave, epoch);
	if (!window)
		return 0;
	u64 entries = 1ull << places->messages_shift, produced = 0;
	int tries;
	for (tries = 0; tries < PUSHES_MAX; tries++) {
		u64 place = READ(context->produced);
		/* If the window has changed meanwhile, the entry is not for the new agent. */
		if (READ(control->epoch) != epoch)
			return 0;
		produced = index_of(place, epoch);
		u64 consumed = index_of(READ(context->credit), epoch);
		if (produced - consumed >= entries) {
			struct line *credit = line_at(window, places->messages_credit + at);
			consumed = credit ? READ(credit->words[0]) : 0;
			if (READ(context->produced) != place)
				continue;
			if (consumed > produced) {
				blame(control, enclave);
				return 0;
			}
			if (produced - consumed >= entries) {
				lose(control, enclave);
				return 0;
			}
			WRITE(context->credit, epoch << INDEX_BITS | consumed);
		}
		u64 next = epoch << INDEX_BITS | (produced + 1);
		if (__sync_val_compare_and_swap(&context->produced, place, next) == place)
			break;
	}
	if (tries == PUSHES_MAX) {
		lose(control, enclave);
		return 0;
	}
	u64 slot = produced & (entries - 1);
	struct line *line = line_at(window, places->messages_first + (at << places->messages_shift) + slot);
	if (!line)
		return 0;
#pragma unroll
	for (int word = 0; word < 6; word++)
		WRITE(line->words[word], entry->words[word]);
	u64 lap = (produced >> places->messages_shift) + 1;
	/* The exchange orders the stores above before it, and the load below after it. */
	__sync_lock_test_and_set(&line->words[LAP_WORD], lap << 32 | tag);
	fence(places);
	struct line *parked = line_at(window, places->agent_parked);
	if (parked && READ(parked->words[0]) == PARKED)
		ring(enclave, BELL_AGENT);
	return 0;
}
