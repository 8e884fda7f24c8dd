//! An enclave frees its memory when it ends. The test has its own process because it counts mappings.

use wave_user::{Enclave, Options};

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

#[test]
fn enclaves_that_have_ended_leave_no_stacks_behind() {
    let start = |round| {
        let name = format!("wave-test-{}-memory-{round}.sock", std::process::id());
        let mut options = Options::new(std::env::temp_dir().join(name));
        options.config.subjects = 1024;
        options.yields_cpu = true;
        Enclave::start(options).unwrap()
    };
    let before = mappings();
    for round in 0..3 {
        let enclave = start(round);
        // Several threads at a time, so that several stacks are used.
        let threads: Vec<_> =
            (0..64).map(|_| enclave.spawn(0, wave_user::yield_now).unwrap()).collect();
        assert!(mappings() > before + 1024);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
    // Memory that the allocator and the pthreads keep after the first enclave takes far fewer mappings than its stacks.
    assert!(mappings() < before + 512, "{before} mappings before, {} after", mappings());
}
