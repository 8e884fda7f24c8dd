//! The functions of `rocksdb/c.h` that this crate uses, as that header declares them (docs/adr/0007).
//!
//! The library is loaded when a database is first opened: most processes open none, and its relocated pages and buffers would
//! cost each of them half a megabyte. A program that is linked statically has it linked in.
//!
//! The signatures are those of 7.8 and of newer releases, but for the options of plain tables: 7.8 has the first five parameters
//! only. The calling conventions of x86-64 and AArch64 let a caller pass more.

#![allow(
    non_snake_case,
    clippy::too_many_arguments,
    reason = "the names and parameters are RocksDB's"
)]

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_void};
#[cfg(not(target_feature = "crt-static"))]
use std::sync::OnceLock;

#[cfg(not(target_feature = "crt-static"))]
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use super::Error;

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

/// Declares functions of the library: to be looked up in it, or to be linked.
macro_rules! functions {
    ($(fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        #[cfg(target_feature = "crt-static")]
        #[link(name = "rocksdb")]
        unsafe extern "C" {
            $(pub fn $name($($argument: $kind),*) $(-> $result)?;)*
        }

        #[cfg(not(target_feature = "crt-static"))]
        struct Functions {
            $($name: unsafe extern "C" fn($($kind),*) $(-> $result)?,)*
            _library: Library,
        }

        #[cfg(not(target_feature = "crt-static"))]
        impl Functions {
            fn of(library: Library) -> Result<Functions, libloading::Error> {
                Ok(Functions {
                    // SAFETY: the header declares the function so.
                    $($name: unsafe { *library.get(stringify!($name))? },)*
                    _library: library,
                })
            }
        }

        $(
            // Not inlined: an exception in the library must end the process at once (see `terminate`). A call by name to a function
            // that cannot unwind has no entry in its caller's unwind table, so that the exception ends there. An indirect call
            // has an entry, and the exception would pass.
            #[cfg(not(target_feature = "crt-static"))]
            #[inline(never)]
            pub unsafe extern "C" fn $name($($argument: $kind),*) $(-> $result)? {
                let Some(functions) = FUNCTIONS.get() else { not_loaded() };
                // SAFETY: the caller keeps the function's contract.
                unsafe { (functions.$name)($($argument),*) }
            }
        )*
    };
}

functions! {
    fn rocksdb_open(
        options: *const Options,
        name: *const c_char,
        error: *mut *mut c_char,
    ) -> *mut Db;
    fn rocksdb_close(db: *mut Db);
    fn rocksdb_free(pointer: *mut c_void);
    fn rocksdb_get_pinned(
        db: *mut Db,
        options: *const ReadOptions,
        key: *const c_char,
        key_bytes: usize,
        error: *mut *mut c_char,
    ) -> *mut PinnableSlice;
    fn rocksdb_pinnableslice_value(
        slice: *const PinnableSlice,
        bytes: *mut usize,
    ) -> *const c_char;
    fn rocksdb_pinnableslice_destroy(slice: *mut PinnableSlice);
    fn rocksdb_create_iterator(db: *mut Db, options: *const ReadOptions) -> *mut Iterator;
    fn rocksdb_iter_destroy(iterator: *mut Iterator);
    fn rocksdb_iter_valid(iterator: *const Iterator) -> c_uchar;
    fn rocksdb_iter_seek_to_first(iterator: *mut Iterator);
    fn rocksdb_iter_seek(iterator: *mut Iterator, key: *const c_char, key_bytes: usize);
    fn rocksdb_iter_next(iterator: *mut Iterator);
    fn rocksdb_iter_key(iterator: *const Iterator, bytes: *mut usize) -> *const c_char;
    fn rocksdb_iter_value(iterator: *const Iterator, bytes: *mut usize) -> *const c_char;
    fn rocksdb_iter_get_error(iterator: *const Iterator, error: *mut *mut c_char);
    fn rocksdb_put(
        db: *mut Db,
        options: *const WriteOptions,
        key: *const c_char,
        key_bytes: usize,
        value: *const c_char,
        value_bytes: usize,
        error: *mut *mut c_char,
    );
    fn rocksdb_delete(
        db: *mut Db,
        options: *const WriteOptions,
        key: *const c_char,
        key_bytes: usize,
        error: *mut *mut c_char,
    );
    fn rocksdb_write(
        db: *mut Db,
        options: *const WriteOptions,
        batch: *mut WriteBatch,
        error: *mut *mut c_char,
    );
    fn rocksdb_flush(db: *mut Db, options: *const FlushOptions, error: *mut *mut c_char);
    fn rocksdb_compact_range(
        db: *mut Db,
        start: *const c_char,
        start_bytes: usize,
        limit: *const c_char,
        limit_bytes: usize,
    );

    fn rocksdb_options_create() -> *mut Options;
    fn rocksdb_options_destroy(options: *mut Options);
    fn rocksdb_options_set_create_if_missing(options: *mut Options, yes: c_uchar);
    fn rocksdb_options_set_allow_mmap_reads(options: *mut Options, yes: c_uchar);
    fn rocksdb_options_set_compression(options: *mut Options, kind: c_int);
    fn rocksdb_options_set_write_buffer_size(options: *mut Options, bytes: usize);
    fn rocksdb_options_set_target_file_size_base(options: *mut Options, bytes: u64);
    fn rocksdb_options_set_stats_dump_period_sec(options: *mut Options, period: c_uint);
    fn rocksdb_options_set_stats_persist_period_sec(options: *mut Options, period: c_uint);
    fn rocksdb_options_set_prefix_extractor(
        options: *mut Options,
        transform: *mut SliceTransform,
    );
    fn rocksdb_options_set_plain_table_factory(
        options: *mut Options,
        user_key_bytes: u32,
        bloom_bits_per_key: c_int,
        hash_table_ratio: f64,
        index_sparseness: usize,
        huge_page_bytes: usize,
        encoding_type: c_char,
        full_scan_mode: c_uchar,
        store_index_in_file: c_uchar,
    );
    fn rocksdb_options_set_block_based_table_factory(
        options: *mut Options,
        blocks: *mut BlockOptions,
    );
    fn rocksdb_block_based_options_create() -> *mut BlockOptions;
    fn rocksdb_block_based_options_destroy(options: *mut BlockOptions);
    fn rocksdb_block_based_options_set_block_size(options: *mut BlockOptions, bytes: usize);
    fn rocksdb_block_based_options_set_block_cache(
        options: *mut BlockOptions,
        cache: *mut Cache,
    );
    fn rocksdb_cache_create_lru(bytes: usize) -> *mut Cache;
    fn rocksdb_cache_get_usage(cache: *mut Cache) -> usize;
    fn rocksdb_cache_destroy(cache: *mut Cache);
    fn rocksdb_slicetransform_create_fixed_prefix(bytes: usize) -> *mut SliceTransform;

    fn rocksdb_readoptions_create() -> *mut ReadOptions;
    fn rocksdb_readoptions_destroy(options: *mut ReadOptions);
    fn rocksdb_readoptions_set_verify_checksums(options: *mut ReadOptions, yes: c_uchar);
    fn rocksdb_writeoptions_create() -> *mut WriteOptions;
    fn rocksdb_writeoptions_destroy(options: *mut WriteOptions);
    fn rocksdb_writeoptions_disable_WAL(options: *mut WriteOptions, yes: c_int);
    fn rocksdb_flushoptions_create() -> *mut FlushOptions;
    fn rocksdb_flushoptions_destroy(options: *mut FlushOptions);
    fn rocksdb_writebatch_create() -> *mut WriteBatch;
    fn rocksdb_writebatch_destroy(batch: *mut WriteBatch);
    fn rocksdb_writebatch_clear(batch: *mut WriteBatch);
    fn rocksdb_writebatch_put(
        batch: *mut WriteBatch,
        key: *const c_char,
        key_bytes: usize,
        value: *const c_char,
        value_bytes: usize,
    );
}

#[cfg(not(target_feature = "crt-static"))]
static FUNCTIONS: OnceLock<Functions> = OnceLock::new();

/// Loads RocksDB's library, if it is neither loaded yet nor linked in. Opening a database does so, too; a process that gives up
/// rights does it before.
///
/// # Errors
/// The library cannot be loaded.
pub fn load() -> Result<(), Error> {
    #[cfg(not(target_feature = "crt-static"))]
    if FUNCTIONS.get().is_none() {
        // The name that development packages install, then Debian 12's.
        let library = open("librocksdb.so").or_else(|first| {
            open("librocksdb.so.7.8").map_err(|second| format!("{first}; {second}"))
        });
        let functions = library.and_then(|library| Functions::of(library).map_err(reason));
        let functions = functions.map_err(Error::Library)?;
        FUNCTIONS.get_or_init(|| functions);
    }
    Ok(())
}

#[cfg(not(target_feature = "crt-static"))]
fn open(name: &str) -> Result<Library, String> {
    // All symbols at once, so that no call on a small stack resolves one. Global, because `terminate` looks up a symbol of the
    // C++ library.
    // SAFETY: RocksDB's constructors and destructors of static objects may run on any thread at any time.
    unsafe { Library::open(Some(name), RTLD_NOW | RTLD_GLOBAL) }.map_err(reason)
}

/// The words of the dynamic linker, which the error itself does not have.
#[cfg(not(target_feature = "crt-static"))]
fn reason(error: libloading::Error) -> String {
    std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string)
}

#[cfg(not(target_feature = "crt-static"))]
#[cold]
extern "C" fn not_loaded() -> ! {
    eprintln!("wave: a function of RocksDB was called before its library was loaded");
    std::process::abort()
}

#[cfg(all(test, not(target_feature = "crt-static")))]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_cannot_be_loaded_is_named() {
        let error = open("librocksdb-none.so").unwrap_err();
        assert!(error.contains("librocksdb-none.so"), "{error}");
    }
}
