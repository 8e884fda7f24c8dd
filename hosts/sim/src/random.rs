//! Randomness: one stream per entity, so that a change of one entity leaves the others unchanged
//! (common random numbers).

use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;

/// A stream of random numbers.
pub type Stream = Pcg64Mcg;

/// The stream of an entity, given by its name and number, under the run's seed.
pub fn stream(seed: u64, entity: &str, number: u64) -> Stream {
    let mut mixed = mix(seed ^ 0x9e37_79b9_7f4a_7c15);
    for byte in entity.bytes() {
        mixed = mix(mixed ^ u64::from(byte));
    }
    Stream::seed_from_u64(mix(mixed ^ number))
}

/// A finalizer that spreads every bit (splitmix64).
fn mix(value: u64) -> u64 {
    let mut mixed = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use rand::RngCore;

    use super::*;

    #[test]
    fn streams_differ_by_seed_name_and_number() {
        let first = |seed, entity, number| stream(seed, entity, number).next_u64();
        let all = [first(1, "a", 0), first(2, "a", 0), first(1, "b", 0), first(1, "a", 1)];
        assert!((1..4).all(|at| !all[..at].contains(&all[at])));
        assert_eq!(all[0], first(1, "a", 0));
    }
}
