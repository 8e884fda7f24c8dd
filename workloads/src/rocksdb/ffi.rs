//! The functions of `rocksdb/c.h` that this crate uses, as that header declares them.
//!
//! Declared by hand: their signatures have not changed since RocksDB 5. Generated bindings would
//! need libclang, and the existing crates either do not link against the distribution's library or
//! build their own.

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_void};

/// Declares opaque types of RocksDB.
macro_rules! opaque {
    ($($name:ident),*) => {$(
        #[repr(C)]
        pub struct $name {
            _private: [u8; 0],
        }
    )*};
}
opaque!(
    Db,
    Options,
    ReadOptions,
    Iterator,
    WriteOptions,
    FlushOptions,
    WriteBatch,
    PinnableSlice,
    SliceTransform,
    Cache,
    BlockOptions
);

#[link(name = "rocksdb")]
unsafe extern "C" {
    pub fn rocksdb_open(
        options: *const Options,
        name: *const c_char,
        error: *mut *mut c_char,
    ) -> *mut Db;
    pub fn rocksdb_close(db: *mut Db);
    pub fn rocksdb_free(pointer: *mut c_void);
    pub fn rocksdb_get_pinned(
        db: *mut Db,
        options: *const ReadOptions,
        key: *const c_char,
        key_bytes: usize,
        error: *mut *mut c_char,
    ) -> *mut PinnableSlice;
    pub fn rocksdb_pinnableslice_value(
        slice: *const PinnableSlice,
        bytes: *mut usize,
    ) -> *const c_char;
    pub fn rocksdb_pinnableslice_destroy(slice: *mut PinnableSlice);
    pub fn rocksdb_create_iterator(db: *mut Db, options: *const ReadOptions) -> *mut Iterator;
    pub fn rocksdb_iter_destroy(iterator: *mut Iterator);
    pub fn rocksdb_iter_valid(iterator: *const Iterator) -> c_uchar;
    pub fn rocksdb_iter_seek_to_first(iterator: *mut Iterator);
    pub fn rocksdb_iter_seek(iterator: *mut Iterator, key: *const c_char, key_bytes: usize);
    pub fn rocksdb_iter_next(iterator: *mut Iterator);
    pub fn rocksdb_iter_key(iterator: *const Iterator, bytes: *mut usize) -> *const c_char;
    pub fn rocksdb_iter_value(iterator: *const Iterator, bytes: *mut usize) -> *const c_char;
    pub fn rocksdb_iter_get_error(iterator: *const Iterator, error: *mut *mut c_char);
    pub fn rocksdb_put(
        db: *mut Db,
        options: *const WriteOptions,
        key: *const c_char,
        key_bytes: usize,
        value: *const c_char,
        value_bytes: usize,
        error: *mut *mut c_char,
    );
    pub fn rocksdb_delete(
        db: *mut Db,
        options: *const WriteOptions,
        key: *const c_char,
        key_bytes: usize,
        error: *mut *mut c_char,
    );
    pub fn rocksdb_write(
        db: *mut Db,
        options: *const WriteOptions,
        batch: *mut WriteBatch,
        error: *mut *mut c_char,
    );
    pub fn rocksdb_flush(db: *mut Db, options: *const FlushOptions, error: *mut *mut c_char);
    pub fn rocksdb_compact_range(
        db: *mut Db,
        start: *const c_char,
        start_bytes: usize,
        limit: *const c_char,
        limit_bytes: usize,
    );

    pub fn rocksdb_options_create() -> *mut Options;
    pub fn rocksdb_options_destroy(options: *mut Options);
    pub fn rocksdb_options_set_create_if_missing(options: *mut Options, yes: c_uchar);
    pub fn rocksdb_options_set_allow_mmap_reads(options: *mut Options, yes: c_uchar);
    pub fn rocksdb_options_set_compression(options: *mut Options, kind: c_int);
    pub fn rocksdb_options_set_write_buffer_size(options: *mut Options, bytes: usize);
    pub fn rocksdb_options_set_target_file_size_base(options: *mut Options, bytes: u64);
    pub fn rocksdb_options_set_stats_dump_period_sec(options: *mut Options, period: c_uint);
    pub fn rocksdb_options_set_stats_persist_period_sec(options: *mut Options, period: c_uint);
    pub fn rocksdb_options_set_prefix_extractor(
        options: *mut Options,
        transform: *mut SliceTransform,
    );
    pub fn rocksdb_options_set_plain_table_factory(
        options: *mut Options,
        user_key_bytes: u32,
        bloom_bits_per_key: c_int,
        hash_table_ratio: f64,
        index_sparseness: usize,
    );
    pub fn rocksdb_options_set_block_based_table_factory(
        options: *mut Options,
        blocks: *mut BlockOptions,
    );
    pub fn rocksdb_block_based_options_create() -> *mut BlockOptions;
    pub fn rocksdb_block_based_options_destroy(options: *mut BlockOptions);
    pub fn rocksdb_block_based_options_set_block_size(options: *mut BlockOptions, bytes: usize);
    pub fn rocksdb_block_based_options_set_block_cache(
        options: *mut BlockOptions,
        cache: *mut Cache,
    );
    pub fn rocksdb_cache_create_lru(bytes: usize) -> *mut Cache;
    pub fn rocksdb_cache_get_usage(cache: *mut Cache) -> usize;
    pub fn rocksdb_cache_destroy(cache: *mut Cache);
    pub fn rocksdb_slicetransform_create_fixed_prefix(bytes: usize) -> *mut SliceTransform;

    pub fn rocksdb_readoptions_create() -> *mut ReadOptions;
    pub fn rocksdb_readoptions_destroy(options: *mut ReadOptions);
    pub fn rocksdb_readoptions_set_verify_checksums(options: *mut ReadOptions, yes: c_uchar);
    pub fn rocksdb_writeoptions_create() -> *mut WriteOptions;
    pub fn rocksdb_writeoptions_destroy(options: *mut WriteOptions);
    pub fn rocksdb_writeoptions_disable_WAL(options: *mut WriteOptions, yes: c_int);
    pub fn rocksdb_flushoptions_create() -> *mut FlushOptions;
    pub fn rocksdb_flushoptions_destroy(options: *mut FlushOptions);
    pub fn rocksdb_writebatch_create() -> *mut WriteBatch;
    pub fn rocksdb_writebatch_destroy(batch: *mut WriteBatch);
    pub fn rocksdb_writebatch_clear(batch: *mut WriteBatch);
    pub fn rocksdb_writebatch_put(
        batch: *mut WriteBatch,
        key: *const c_char,
        key_bytes: usize,
        value: *const c_char,
        value_bytes: usize,
    );
}
