//! Options of a database: its tables, and the cache of their blocks.

use std::ffi::c_int;
use std::ptr::NonNull;

use super::ffi;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Index {
    Hash,
    Sorted,
    Blocks,
}

pub(super) struct Options {
    pub(super) raw: *mut ffi::Options,
    pub(super) index: Index,
}

impl Options {
    pub(super) fn for_plain_tables(index: Index) -> Options {
        /// Length of a key: a big-endian u64.
        const KEY_BYTES: u32 = 8;
        /// Every key is its own prefix, so a filter would only repeat what the hash index says.
        const NO_BLOOM_FILTER: c_int = 0;
        const KEYS_PER_BUCKET: f64 = 0.75;
        /// A sorted index has no buckets.
        const NO_BUCKETS: f64 = 0.0;
        /// Has an effect only if several keys share a prefix.
        const INDEX_SPARSENESS: usize = 16;
        const MEMTABLE_BYTES: usize = 256 << 20;
        /// A PlainTable file cannot exceed 2 GiB.
        const FILE_BYTES: u64 = 1 << 30;
        const NO_COMPRESSION: c_int = 0;

        // SAFETY: takes nothing; aborts rather than returning null.
        let options = Options { raw: unsafe { ffi::rocksdb_options_create() }, index };
        let raw = options.raw;
        // SAFETY: `raw` is alive throughout; each call sets a field. The transform is made here
        // and owned by the options from then on.
        unsafe {
            ffi::rocksdb_options_set_create_if_missing(raw, 1);
            if index == Index::Hash {
                ffi::rocksdb_options_set_prefix_extractor(
                    raw,
                    ffi::rocksdb_slicetransform_create_fixed_prefix(KEY_BYTES as usize),
                );
            }
            ffi::rocksdb_options_set_plain_table_factory(
                raw,
                KEY_BYTES,
                NO_BLOOM_FILTER,
                if index == Index::Hash { KEYS_PER_BUCKET } else { NO_BUCKETS },
                INDEX_SPARSENESS,
                // RocksDB's defaults: no huge pages, plain encoding, no full-scan mode, an index in memory only.
                0,
                0,
                0,
                0,
            );
            ffi::rocksdb_options_set_allow_mmap_reads(raw, 1);
            ffi::rocksdb_options_set_compression(raw, NO_COMPRESSION);
            ffi::rocksdb_options_set_write_buffer_size(raw, MEMTABLE_BYTES);
            ffi::rocksdb_options_set_target_file_size_base(raw, FILE_BYTES);
            // No background thread may wake up during a measurement.
            ffi::rocksdb_options_set_stats_dump_period_sec(raw, 0);
            ffi::rocksdb_options_set_stats_persist_period_sec(raw, 0);
        }
        options
    }

    pub(super) fn for_blocks(block_bytes: usize, cache: &Cache) -> Options {
        /// Small, so that memory used for filling is small compared with the cache.
        const MEMTABLE_BYTES: usize = 32 << 20;
        const NO_COMPRESSION: c_int = 0;

        // SAFETY: takes nothing; aborts rather than returning null.
        let raw = unsafe { ffi::rocksdb_options_create() };
        let options = Options { raw, index: Index::Blocks };
        // SAFETY: `raw`, the cache and the block options are alive throughout; each call sets a field. The
        // options share the cache and copy the block options, which are destroyed once.
        unsafe {
            let blocks = ffi::rocksdb_block_based_options_create();
            ffi::rocksdb_block_based_options_set_block_size(blocks, block_bytes);
            ffi::rocksdb_block_based_options_set_block_cache(blocks, cache.raw.as_ptr());
            ffi::rocksdb_options_set_block_based_table_factory(raw, blocks);
            ffi::rocksdb_block_based_options_destroy(blocks);
            ffi::rocksdb_options_set_create_if_missing(raw, 1);
            ffi::rocksdb_options_set_compression(raw, NO_COMPRESSION);
            ffi::rocksdb_options_set_write_buffer_size(raw, MEMTABLE_BYTES);
            ffi::rocksdb_options_set_stats_dump_period_sec(raw, 0);
            ffi::rocksdb_options_set_stats_persist_period_sec(raw, 0);
        }
        options
    }
}

pub(super) struct Cache {
    raw: NonNull<ffi::Cache>,
    pub(super) bytes: usize,
}

impl Cache {
    pub(super) fn new(bytes: usize) -> Cache {
        // SAFETY: takes a number; aborts rather than returning null.
        let raw = unsafe { ffi::rocksdb_cache_create_lru(bytes) };
        Cache { raw: NonNull::new(raw).expect("RocksDB always returns a cache"), bytes }
    }

    pub(super) fn held_bytes(&self) -> u64 {
        // SAFETY: the cache is alive.
        unsafe { ffi::rocksdb_cache_get_usage(self.raw.as_ptr()) as u64 }
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once; an open database shares ownership of the cache itself.
        unsafe { ffi::rocksdb_cache_destroy(self.raw.as_ptr()) };
    }
}

impl Drop for Options {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once; an open database keeps a copy.
        unsafe { ffi::rocksdb_options_destroy(self.raw) };
    }
}
