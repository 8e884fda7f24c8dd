//! Estimates the size of pages in compressed memory: reads a few pages of each batch and compresses them by LZ4.

use wave_memory::table::Bits;
use wave_memory::wire;

use super::process::{Process, iovec};

const PAGE: usize = 4096;
const BATCH: u64 = 64 * PAGE as u64;
/// Number of pages sampled per batch.
const SAMPLES: usize = 2;
/// Number of pages read at once: the buffer for them is this process's own memory, which counts against what a run saves.
const PAGES_AT_ONCE: usize = 16;
/// zram stores a page uncompressed if compression leaves more bytes than this (zsmalloc's largest class with several objects to
/// a page).
const HUGE_BYTES: usize = 3_600;
/// Bytes that zsmalloc adds to each object, the step between its size classes, and the most pages that it joins to hold objects of
/// a class.
const HEADER_BYTES: usize = 8;
const STEP_BYTES: usize = 16;
const JOINED_PAGES_MAX: usize = 8;
/// Bytes that zsmalloc takes beside an object: a handle that leads to it, which the kernel's own figure (`mem_used_total`) leaves
/// out.
const HANDLE_BYTES: usize = 8;
/// Batches whose pages take more bytes than this each are not worth paging out: that would save less than an eighth of the
/// memory, and a refault costs as much as any other.
const WORTH_BYTES: u16 = (PAGE - PAGE / 8) as u16;

/// Estimates for the batches of a strip.
#[derive(Clone, Debug)]
pub(super) struct Sampled {
    /// Compressed bytes per page of each batch; a full page for batches of which nothing was read.
    pub bytes: [u16; 64],
    /// Set of batches that are not worth paging out, by their samples. Without a sample there is no verdict.
    pub incompressible: u64,
}

/// Reads and compresses samples. Keeps its buffers between strips.
#[derive(Debug, Default)]
pub(super) struct Sampler {
    pages: Vec<u8>,
    compressed: Vec<u8>,
    state: u64,
}

impl Sampler {
    /// Samples pages of these batches that are present and not young. Reading absent pages would bring them back.
    pub(super) fn sample(
        &mut self,
        process: &Process,
        strip: u64,
        batches: u64,
        seen: &Bits,
    ) -> Sampled {
        let mut sampled = Sampled { bytes: [PAGE as u16; 64], incompressible: 0 };
        let mut places = Vec::new();
        for batch in wire::bits(batches) {
            let rests = seen.present[batch as usize] & !seen.young[batch as usize];
            let pages = wire::bits(rests).count();
            for sample in 0..SAMPLES.min(pages) {
                // A random page from each half.
                let (first, after) = (sample * pages / SAMPLES, (sample + 1) * pages / SAMPLES);
                let at = first + self.draw() as usize % (after - first).max(1);
                let page = wire::bits(rests).nth(at).unwrap_or(0);
                places.push((
                    batch,
                    strip + u64::from(batch) * BATCH + u64::from(page) * PAGE as u64,
                ));
            }
        }
        let mut sums = [(0, 0); 64];
        for places in places.chunks(PAGES_AT_ONCE) {
            let read = self.read(process, places);
            for (&(batch, _), page) in places.iter().zip(self.pages[..read].chunks_exact(PAGE)) {
                let (bytes, count) = &mut sums[batch as usize];
                *bytes += taken(page, &mut self.compressed);
                *count += 1;
            }
        }
        for batch in wire::bits(batches) {
            let (bytes, count) = sums[batch as usize];
            if let Some(mean) = bytes.checked_div(count) {
                let bytes = mean as u16;
                sampled.bytes[batch as usize] = bytes;
                sampled.incompressible |= u64::from(bytes > WORTH_BYTES) << batch;
            }
        }
        // A huge page is paged out as a whole or not at all. One that is in use stays, and is not read.
        for first in wire::bits(batches & wire::firsts(seen.huge)) {
            let unit = first as usize..(first + wire::UNIT_BATCHES) as usize;
            let whole = 0xff << first;
            sampled.incompressible &= !whole;
            let sums = sums[unit.clone()].iter();
            let (bytes, count) =
                sums.fold((0, 0), |(bytes, count), sum| (bytes + sum.0, count + sum.1));
            if let Some(mean) = bytes.checked_div(count) {
                sampled.bytes[unit].fill(mean as u16);
                let is_worth_it = mean <= usize::from(WORTH_BYTES);
                sampled.incompressible |= if is_worth_it { 0 } else { whole };
            }
        }
        sampled
    }

    /// Reads whole pages, up to the first unreadable one. Returns the number of bytes read.
    fn read(&mut self, process: &Process, places: &[(u32, u64)]) -> usize {
        self.pages.resize(places.len() * PAGE, 0);
        let from: Vec<_> = places.iter().map(|(_, at)| iovec(*at, PAGE as u64)).collect();
        process.read(&from, &mut self.pages) / PAGE * PAGE
    }

    fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.state >> 33
    }
}

/// Bytes that zram takes for a page.
fn taken(page: &[u8], compressed: &mut Vec<u8>) -> usize {
    let (words, _) = page.as_chunks::<8>();
    if words.iter().all(|word| *word == words[0]) {
        return 0;
    }
    compressed.resize(lz4_flex::block::get_maximum_output_size(PAGE), 0);
    match lz4_flex::block::compress_into(page, compressed) {
        Ok(bytes) if bytes <= HUGE_BYTES => {
            let class = (bytes + HEADER_BYTES).next_multiple_of(STEP_BYTES);
            share_of_pages(class) + HANDLE_BYTES
        }
        _ => PAGE,
    }
}

/// Bytes that zsmalloc takes for an object of a size class: it joins as many pages as waste the least, and divides them.
fn share_of_pages(class: usize) -> usize {
    let waste = |pages: &usize| pages * PAGE % class;
    let pages = (1..=JOINED_PAGES_MAX).min_by_key(waste).unwrap_or(1);
    pages * PAGE / (pages * PAGE / class)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(of: impl Fn(u64) -> u64) -> Vec<u8> {
        (0..PAGE as u64 / 8).flat_map(|word| of(word).to_ne_bytes()).collect()
    }

    fn noise(word: u64) -> u64 {
        let mixed = (word + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ mixed >> 27
    }

    #[test]
    fn page_takes_its_compressed_size() {
        let mut buffer = Vec::new();
        let mut taken = |of: fn(u64) -> u64| super::taken(&page(of), &mut buffer);
        assert_eq!(
            [taken(|_| 0), taken(|_| 7)],
            [0, 0],
            "a page of one repeated word takes no memory"
        );
        assert_eq!(taken(noise), PAGE, "noise is stored uncompressed");
        let half = taken(|word| if word % 2 == 0 { 1 } else { noise(word) });
        assert!((PAGE / 2..PAGE * 3 / 4).contains(&half), "{half}");
        assert_eq!(share_of_pages(2_800), 7 * PAGE / 10, "ten objects in seven pages");
        assert_eq!(share_of_pages(2_048), PAGE / 2);
        let text = taken(|word| u64::from_ne_bytes(*b"a word, ") ^ (word % 5));
        assert!(text < PAGE / 8, "{text}");
    }

    /// Zeroed memory with a whole strip in it, and the strip's offset there.
    fn with_strip() -> (Vec<u8>, usize) {
        let strip_bytes = wave_memory::wire::STRIP_BYTES as usize;
        let memory = vec![0_u8; 2 * strip_bytes];
        let start = memory.as_ptr() as usize;
        (memory, start.next_multiple_of(strip_bytes) - start)
    }

    #[test]
    fn only_untouched_pages_are_sampled_and_noise_is_incompressible() {
        let process = Process::ourselves().unwrap();
        let (mut memory, offset) = with_strip();
        let strip = memory[offset..].as_ptr() as u64;
        let batch = BATCH as usize;
        let noise: Vec<u8> = (0..64).flat_map(|at| page(|word| noise(word + at * 512))).collect();
        // More samples than are read at once.
        let noisy = 3..3 + PAGES_AT_ONCE;
        for at in noisy.clone() {
            memory[offset + at * batch..][..batch].copy_from_slice(&noise);
        }
        let mut seen = Bits::default();
        (seen.present[0], seen.present[1]) = (u64::MAX, u64::MAX);
        seen.present[noisy.clone()].fill(u64::MAX);
        seen.young[1] = u64::MAX;
        let sampled = Sampler::default().sample(&process, strip, u64::MAX, &seen);
        assert_eq!(sampled.bytes[..3], [0, 4096, 4096], "batches 1 and 2 are not read");
        assert_eq!(sampled.incompressible, ((1 << PAGES_AT_ONCE) - 1) << 3);
    }

    #[test]
    fn huge_page_that_is_in_use_gets_no_verdict() {
        let process = Process::ourselves().unwrap();
        let (mut memory, offset) = with_strip();
        let strip = memory[offset..].as_ptr() as u64;
        let noise: Vec<u8> = (0..64).flat_map(|at| page(|word| noise(word + at * 512))).collect();
        for at in 16..24 {
            memory[offset + at * BATCH as usize..][..BATCH as usize].copy_from_slice(&noise);
        }
        // Three huge pages: the first is in use, the second is empty, the third is noise.
        let mut seen = Bits { huge: 0b111, ..Bits::default() };
        seen.present[..24].fill(u64::MAX);
        seen.young[..8].fill(u64::MAX);
        let sampled = Sampler::default().sample(&process, strip, 0xff_ffff, &seen);
        assert_eq!(sampled.incompressible, 0xff_0000);
        assert_eq!((sampled.bytes[8], sampled.bytes[16]), (0, PAGE as u16));
    }
}
