//! A RocksDB database in memory, read by number.

mod ffi;
mod folder;
mod memory;
mod options;
mod terminate;

use std::ffi::{CStr, CString, c_char};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};

pub use self::ffi::load;
use self::options::{Cache, Index, Options};
use self::terminate::Directory;

/// An operation of the database failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The library cannot be loaded.
    #[error(
        "RocksDB cannot be loaded: {0}; if it is not installed: apt-get install librocksdb-dev"
    )]
    Library(String),
    /// RocksDB reported a failure.
    #[error("RocksDB could not {doing}: {text}")]
    RocksDb { doing: &'static str, text: String },
    /// The cache holds only a part of the database.
    #[error(
        "a block cache of {cache_bytes} bytes does not hold the database: {held_bytes} bytes are in it, and keys and \
         values are {data_bytes}: make it larger"
    )]
    CacheTooSmall {
        cache_bytes: u64,
        /// Bytes in the cache after every block was read.
        held_bytes: u64,
        /// Lower bound of the bytes to hold.
        data_bytes: u64,
    },
    /// Filling the database would take more memory than is available.
    #[error(
        "{keys} keys with values of {value_bytes} bytes take some {needed_mib} MiB of memory, and {available_mib} MiB \
         are available: fewer keys or smaller values"
    )]
    TooLarge { keys: u64, value_bytes: usize, needed_mib: u64, available_mib: u64 },
    /// The database's directory could not be created.
    #[error("no directory for the database could be made: {0}")]
    Directory(#[from] io::Error),
}

/// A database in its own temporary directory, which is removed on drop.
///
/// Tables are PlainTable files, read through a mapping and indexed by a hash of the whole key. Of
/// RocksDB's configurations this has the shortest GET, without a block cache or checksums. The
/// directory is in `/dev/shm` if that exists, so that no GET waits for a disk.
///
/// The hash index supports lookups of single keys only. Scans need a sorted index
/// ([`Database::open_in_order`]), with which a GET takes a little longer.
///
/// A third kind ([`Database::open_cached`]) has block-based tables, on disk, and all their blocks in a cache in the
/// process's own memory, as servers have them.
pub struct Database {
    // Fields drop in this order: RocksDB must be closed before its directory is removed.
    handle: Handle,
    read_options: ReadOptions,
    write_options: WriteOptions,
    directory: Directory,
    version: String,
    is_in_order: bool,
    cache: Option<Cache>,
    keys: u64,
}

impl Database {
    /// Opens an empty database in a new directory below `parent`. Without `parent` that is below
    /// `/dev/shm`, or else below the system's directory for temporary files. Directories beside it that killed processes of this
    /// user have left are removed.
    pub fn open(parent: Option<&Path>) -> Result<Database, Error> {
        Database::open_plain(parent, Index::Hash)
    }

    /// The same, with tables that can also be scanned.
    pub fn open_in_order(parent: Option<&Path>) -> Result<Database, Error> {
        Database::open_plain(parent, Index::Sorted)
    }

    fn open_plain(parent: Option<&Path>, index: Index) -> Result<Database, Error> {
        load()?;
        Database::open_with(parent, &Options::for_plain_tables(index), None)
    }

    /// Opens an empty database in a new directory below `parent`, with blocks of `block_bytes` and a cache of
    /// `cache_bytes` for them. [`Database::warm`] reads all blocks into the cache.
    pub fn open_cached(
        parent: &Path,
        block_bytes: usize,
        cache_bytes: usize,
    ) -> Result<Database, Error> {
        load()?;
        let cache = Cache::new(cache_bytes);
        let options = Options::for_blocks(block_bytes, &cache);
        Database::open_with(Some(parent), &options, Some(cache))
    }

    fn open_with(
        parent: Option<&Path>,
        options: &Options,
        cache: Option<Cache>,
    ) -> Result<Database, Error> {
        let directory = Directory::new(folder::make(parent)?);
        let name = CString::new(directory.path().as_os_str().as_bytes())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let handle = checked("open its database", |error| {
            // SAFETY: options and name are alive for the call, and RocksDB copies both.
            unsafe { ffi::rocksdb_open(options.raw, name.as_ptr(), error) }
        })?;
        // SAFETY: takes nothing; aborts rather than returning null.
        let read_options = ReadOptions(unsafe { ffi::rocksdb_readoptions_create() });
        // SAFETY: the options were just made.
        unsafe { ffi::rocksdb_readoptions_set_verify_checksums(read_options.0, 0) };
        Ok(Database {
            handle: Handle(NonNull::new(handle).expect("RocksDB opens or reports an error")),
            read_options,
            write_options: WriteOptions::without_log(),
            version: running_version(directory.path()),
            is_in_order: options.index != Index::Hash,
            cache,
            directory,
            keys: 0,
        })
    }

    /// Writes keys `0..keys` with values of `value_bytes` bytes, and leaves them sorted in table
    /// files that are mapped and touched, without any background work pending.
    ///
    /// A value starts with its key, little-endian, as far as it fits; the rest depends on the key
    /// alone. `progress` gets `(done, total)` keys now and then, and once at the end.
    pub fn fill(
        &mut self,
        keys: u64,
        value_bytes: usize,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<(), Error> {
        const KEYS_PER_BATCH: u64 = 1024;
        memory::check(keys, value_bytes)?;
        let batch = WriteBatch::new();
        let mut value = vec![0; value_bytes];
        let mut done = 0;
        while done < keys {
            let end = keys.min(done + KEYS_PER_BATCH);
            for key in done..end {
                write_value(key, &mut value);
                batch.put(&key.to_be_bytes(), &value);
            }
            checked("write", |error| {
                // SAFETY: all three are alive, and the batch is used by this thread only.
                unsafe {
                    ffi::rocksdb_write(self.handle.get(), self.write_options.0, batch.0, error)
                }
            })?;
            batch.clear();
            done = end;
            progress(done, keys);
        }
        self.settle()?;
        self.keys = self.keys.max(keys);
        if self.cache.is_none() {
            self.touch(keys, value_bytes)?;
        }
        if keys == 0 {
            progress(0, 0);
        }
        Ok(())
    }

    /// Calls `f` with the value of `key` in place in the table, without a copy. Returns false if
    /// there is no such key. Nothing is allocated on this side of the interface; RocksDB itself
    /// allocates a handle of a few words.
    ///
    /// Must not be interrupted: a switch to another stack inside this call leaves RocksDB's
    /// per-thread state in use.
    #[inline]
    pub fn get(&self, key: u64, f: impl FnOnce(&[u8])) -> Result<bool, Error> {
        let key = key.to_be_bytes();
        let slice = checked("get a key", |error| {
            // SAFETY: handle and options are alive, and the key is as long as said.
            unsafe {
                ffi::rocksdb_get_pinned(
                    self.handle.get(),
                    self.read_options.0,
                    key.as_ptr().cast(),
                    key.len(),
                    error,
                )
            }
        })?;
        let Some(slice) = NonNull::new(slice) else {
            return Ok(false);
        };
        // Unpins when dropped, also if `f` panics.
        let pinned = Pinned(slice);
        f(pinned.bytes());
        Ok(true)
    }

    /// Sets the value of `key`, in memory only: there is no log, since the database does not outlive this process.
    pub fn put(&self, key: u64, value: &[u8]) -> Result<(), Error> {
        let key = key.to_be_bytes();
        checked("put a key", |error| {
            // SAFETY: handle and options are alive, key and value are as long as said, and are copied.
            unsafe {
                ffi::rocksdb_put(
                    self.handle.get(),
                    self.write_options.0,
                    key.as_ptr().cast(),
                    key.len(),
                    value.as_ptr().cast(),
                    value.len(),
                    error,
                )
            }
        })
    }

    /// Removes `key`, if it exists.
    pub fn delete(&self, key: u64) -> Result<(), Error> {
        let key = key.to_be_bytes();
        checked("delete a key", |error| {
            // SAFETY: handle and options are alive, and the key is as long as said.
            unsafe {
                ffi::rocksdb_delete(
                    self.handle.get(),
                    self.write_options.0,
                    key.as_ptr().cast(),
                    key.len(),
                    error,
                )
            }
        })
    }

    /// Calls `f` with each key and its value, in order from key `first` on, wrapping around to the
    /// smallest key after the last, until `f` returns false. Returns at once if there is no key.
    ///
    /// `f` may switch to another stack and return on another pthread: between two steps RocksDB
    /// uses no state of this thread, and the iterator is exclusively this scan's.
    ///
    /// # Panics
    ///
    /// If the database was not opened by [`Database::open_in_order`].
    pub fn scan(&self, first: u64, mut f: impl FnMut(u64, &[u8]) -> bool) -> Result<(), Error> {
        assert!(self.is_in_order, "a scan needs a database opened in order");
        // SAFETY: handle and options are alive, and outlive the iterator.
        let raw = unsafe { ffi::rocksdb_create_iterator(self.handle.get(), self.read_options.0) };
        let mut iterator = Scan(NonNull::new(raw).expect("RocksDB always returns an iterator"));
        iterator.seek(first);
        let mut starts_over = true;
        loop {
            match iterator.current() {
                Some((key, value)) => {
                    starts_over = true;
                    if !f(key, value) {
                        return Ok(());
                    }
                    iterator.next();
                }
                None => {
                    iterator.check()?;
                    if !std::mem::take(&mut starts_over) {
                        return Ok(());
                    }
                    iterator.seek_to_first();
                }
            }
        }
    }

    /// Reads every block into the cache, and returns the number of bytes then in it.
    ///
    /// # Panics
    ///
    /// If the database was not opened by [`Database::open_cached`].
    pub fn warm(&self) -> Result<u64, Error> {
        let cache = self.cache.as_ref().expect("there is a cache to warm");
        let (mut left, mut data_bytes) = (self.keys, 0);
        self.scan(0, |_, value| {
            data_bytes += (size_of::<u64>() + value.len()) as u64;
            left = left.saturating_sub(1);
            left > 0
        })?;
        let held_bytes = cache.held_bytes();
        match held_bytes < data_bytes {
            true => Err(Error::CacheTooSmall {
                cache_bytes: cache.bytes as u64,
                held_bytes,
                data_bytes,
            }),
            false => Ok(held_bytes),
        }
    }

    /// Whether the database can be scanned.
    pub fn is_in_order(&self) -> bool {
        self.is_in_order
    }

    /// Number of keys that [`fill`](Database::fill) has written: the keys `0..keys()`.
    pub fn keys(&self) -> u64 {
        self.keys
    }

    /// The version of the running RocksDB, such as `7.8.3`, from the database's options file (the C
    /// interface has no call for it); `unknown` if it is not there.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Directory of the database.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Flushes the memtable and merges all tables, so that a GET reads only one file.
    fn settle(&self) -> Result<(), Error> {
        // SAFETY: takes nothing; waits for the flush by default.
        let options = FlushOptions(unsafe { ffi::rocksdb_flushoptions_create() });
        checked("flush", |error| {
            // SAFETY: handle and options are alive.
            unsafe { ffi::rocksdb_flush(self.handle.get(), options.0, error) }
        })?;
        // SAFETY: the handle is alive; null for both ends means the whole range.
        unsafe {
            ffi::rocksdb_compact_range(self.handle.get(), ptr::null(), 0, ptr::null(), 0);
        }
        Ok(())
    }

    /// Reads one key per page, so that no later GET pays for mapping a page.
    fn touch(&self, keys: u64, value_bytes: usize) -> Result<(), Error> {
        const PAGE_BYTES: usize = 4096;
        let step = (PAGE_BYTES / (value_bytes + 32)).max(1);
        for key in (0..keys).step_by(step) {
            self.get(key, |value| {
                for byte in value.iter().step_by(PAGE_BYTES) {
                    std::hint::black_box(*byte);
                }
            })?;
        }
        Ok(())
    }
}

// SAFETY: RocksDB's interface is thread-safe for reads and writes on one handle, and options that are
// not changed may be shared; all other fields are ordinary data.
unsafe impl Send for Database {}
// SAFETY: as above; methods with `&self` need no more than that.
unsafe impl Sync for Database {}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database")
            .field("directory", &self.directory.path())
            .field("keys", &self.keys)
            .field("version", &self.version)
            .finish()
    }
}

/// Whether `value` is the value that [`Database::fill`] wrote for `key`.
pub fn is_value_of(key: u64, value: &[u8]) -> bool {
    let mut chunks = (0u64..).zip(value.chunks(8));
    chunks.all(|(index, chunk)| chunk == &word_of(key, index).to_le_bytes()[..chunk.len()])
}

fn word_of(key: u64, index: u64) -> u64 {
    key.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Fills `value` as [`Database::fill`] does for `key`.
pub fn write_value(key: u64, value: &mut [u8]) {
    for (index, chunk) in (0..).zip(value.chunks_mut(8)) {
        chunk.copy_from_slice(&word_of(key, index).to_le_bytes()[..chunk.len()]);
    }
}

/// The version in the `rocksdb_version=` line of the options file that RocksDB writes beside its tables.
fn running_version(directory: &Path) -> String {
    let find = || -> io::Result<Option<String>> {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            if !entry.file_name().as_bytes().starts_with(b"OPTIONS-") {
                continue;
            }
            let text = fs::read_to_string(entry.path())?;
            let version =
                text.lines().find_map(|line| line.trim().strip_prefix("rocksdb_version="));
            if let Some(version) = version {
                return Ok(Some(version.to_owned()));
            }
        }
        Ok(None)
    };
    find().ok().flatten().unwrap_or_else(|| "unknown".into())
}

/// Calls RocksDB with an error pointer, and converts the error that it leaves there.
#[inline]
fn checked<T>(doing: &'static str, call: impl FnOnce(*mut *mut c_char) -> T) -> Result<T, Error> {
    let mut error: *mut c_char = ptr::null_mut();
    let value = call(&mut error);
    if error.is_null() {
        return Ok(value);
    }
    // SAFETY: RocksDB left a C string that it allocated, which is now ours.
    let text = unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned();
    // SAFETY: it is freed once, by the allocator that made it, and not used again.
    unsafe { ffi::rocksdb_free(error.cast()) };
    Err(Error::RocksDb { doing, text })
}

struct Handle(NonNull<ffi::Db>);

impl Handle {
    #[inline]
    fn get(&self) -> *mut ffi::Db {
        self.0.as_ptr()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: opened once, closed once, and nothing borrowed from it outlives `Database`.
        unsafe { ffi::rocksdb_close(self.get()) };
    }
}

/// A value that stays in place in the table while this lives.
struct Pinned(NonNull<ffi::PinnableSlice>);

impl Pinned {
    #[inline]
    fn bytes(&self) -> &[u8] {
        let mut length = 0;
        // SAFETY: the slice is alive until `self` is dropped.
        let start = unsafe { ffi::rocksdb_pinnableslice_value(self.0.as_ptr(), &mut length) };
        // SAFETY: RocksDB pinned that many bytes there, and tables are never written to.
        unsafe { slice(start, length) }
    }
}

impl Drop for Pinned {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: made once by a get, destroyed once here.
        unsafe { ffi::rocksdb_pinnableslice_destroy(self.0.as_ptr()) };
    }
}

struct Scan(NonNull<ffi::Iterator>);

impl Scan {
    fn seek(&mut self, key: u64) {
        let key = key.to_be_bytes();
        // SAFETY: the iterator is alive and only ours, and the key is as long as said.
        unsafe { ffi::rocksdb_iter_seek(self.0.as_ptr(), key.as_ptr().cast(), key.len()) };
    }

    fn seek_to_first(&mut self) {
        // SAFETY: the iterator is alive and only ours.
        unsafe { ffi::rocksdb_iter_seek_to_first(self.0.as_ptr()) };
    }

    #[inline]
    fn next(&mut self) {
        // SAFETY: the iterator is alive and only ours, and stands on an entry.
        unsafe { ffi::rocksdb_iter_next(self.0.as_ptr()) };
    }

    /// The current entry; None past the last entry, or after an error.
    #[inline]
    fn current(&self) -> Option<(u64, &[u8])> {
        let raw = self.0.as_ptr();
        // SAFETY: the iterator is alive.
        if unsafe { ffi::rocksdb_iter_valid(raw) } == 0 {
            return None;
        }
        let mut bytes = 0;
        // SAFETY: the iterator is on an entry, whose key and value stay in place until it moves, which
        // takes `&mut self`; both are as long as it says.
        let (key, value) = unsafe {
            let key = ffi::rocksdb_iter_key(raw, &mut bytes);
            let key = slice(key, bytes);
            let value = ffi::rocksdb_iter_value(raw, &mut bytes);
            (key, slice(value, bytes))
        };
        Some((u64::from_be_bytes(key.try_into().ok()?), value))
    }

    fn check(&self) -> Result<(), Error> {
        // SAFETY: the iterator is alive.
        checked("scan", |error| unsafe { ffi::rocksdb_iter_get_error(self.0.as_ptr(), error) })
    }
}

impl Drop for Scan {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once here.
        unsafe { ffi::rocksdb_iter_destroy(self.0.as_ptr()) };
    }
}

/// # Safety
///
/// If `bytes` is not 0, `start` must point to that many bytes, which must not change while the result lives.
#[inline]
unsafe fn slice<'a>(start: *const c_char, bytes: usize) -> &'a [u8] {
    if bytes == 0 {
        return &[];
    }
    // SAFETY: the caller guarantees it.
    unsafe { std::slice::from_raw_parts(start.cast(), bytes) }
}

struct ReadOptions(*mut ffi::ReadOptions);

impl Drop for ReadOptions {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once; no get is in progress without `&Database`.
        unsafe { ffi::rocksdb_readoptions_destroy(self.0) };
    }
}

struct FlushOptions(*mut ffi::FlushOptions);

impl Drop for FlushOptions {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        unsafe { ffi::rocksdb_flushoptions_destroy(self.0) };
    }
}

struct WriteOptions(*mut ffi::WriteOptions);

impl WriteOptions {
    fn without_log() -> WriteOptions {
        // SAFETY: takes nothing; aborts rather than returning null.
        let options = WriteOptions(unsafe { ffi::rocksdb_writeoptions_create() });
        // SAFETY: the options were just made.
        unsafe { ffi::rocksdb_writeoptions_disable_WAL(options.0, 1) };
        options
    }
}

impl Drop for WriteOptions {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        unsafe { ffi::rocksdb_writeoptions_destroy(self.0) };
    }
}

struct WriteBatch(*mut ffi::WriteBatch);

impl WriteBatch {
    fn new() -> WriteBatch {
        // SAFETY: takes nothing; aborts rather than returning null.
        WriteBatch(unsafe { ffi::rocksdb_writebatch_create() })
    }

    fn put(&self, key: &[u8], value: &[u8]) {
        // SAFETY: key and value are as long as said, and are copied into the batch.
        unsafe {
            ffi::rocksdb_writebatch_put(
                self.0,
                key.as_ptr().cast(),
                key.len(),
                value.as_ptr().cast(),
                value.len(),
            );
        }
    }

    fn clear(&self) {
        // SAFETY: the batch is alive.
        unsafe { ffi::rocksdb_writebatch_clear(self.0) };
    }
}

impl Drop for WriteBatch {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        unsafe { ffi::rocksdb_writebatch_destroy(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value_of(database: &Database, key: u64) -> Option<Vec<u8>> {
        let mut found = None;
        let there = database.get(key, |value| found = Some(value.to_vec())).unwrap();
        assert_eq!(there, found.is_some());
        found
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(6))]

        #[test]
        fn a_scan_visits_every_key_in_order_and_wraps_around(
            keys in 0u64..3_000,
            value_bytes in 0usize..200,
            first in 0u64..4_000,
        ) {
            let mut database = Database::open_in_order(None).unwrap();
            database.fill(keys, value_bytes, |_, _| {}).unwrap();
            let mut expected = vec![0; value_bytes];
            let (mut next, mut walked) = (if first < keys { first } else { 0 }, 0);
            database
                .scan(first, |key, value| {
                    write_value(next, &mut expected);
                    assert_eq!((key, value), (next, &expected[..]));
                    next = (next + 1) % keys;
                    walked += 1;
                    walked < 2 * keys
                })
                .unwrap();
            prop_assert_eq!(walked, 2 * keys);
            for key in 0..keys.min(50) {
                write_value(key, &mut expected);
                prop_assert_eq!(value_of(&database, key), Some(expected.clone()));
            }
        }

        #[test]
        fn every_key_filled_is_found_and_no_other(
            keys in 0u64..5_000,
            value_bytes in 0usize..2_000,
        ) {
            let mut database = Database::open(None).unwrap();
            let mut told = Vec::new();
            database.fill(keys, value_bytes, |done, total| told.push((done, total))).unwrap();
            prop_assert_eq!(told.last(), Some(&(keys, keys)));
            prop_assert!(told.is_sorted());
            prop_assert_eq!(database.keys(), keys);
            let mut expected = vec![0; value_bytes];
            for key in 0..keys {
                write_value(key, &mut expected);
                prop_assert_eq!(value_of(&database, key), Some(expected.clone()));
            }
            for key in [keys, keys + 1, u64::MAX] {
                prop_assert_eq!(value_of(&database, key), None);
            }
        }
    }

    #[test]
    fn a_cache_holds_every_block_or_reports_that_it_is_too_small() {
        let filled = |cache_bytes| {
            let parent = tempfile::tempdir().unwrap();
            let mut database = Database::open_cached(parent.path(), 4096, cache_bytes).unwrap();
            database.fill(20_000, 256, |_, _| {}).unwrap();
            (
                database.warm(),
                (0..20_000).step_by(37).all(|key| {
                    value_of(&database, key).is_some_and(|value| is_value_of(key, &value))
                }),
            )
        };
        let (held, right) = filled(64 << 20);
        assert!(held.unwrap() >= 20_000 * 264 && right);
        let (refused, right) = filled(2 << 20);
        assert!(matches!(refused, Err(Error::CacheTooSmall { .. })), "{refused:?}");
        assert!(right, "blocks that are not in the cache are read from the tables");
    }

    #[test]
    #[should_panic(expected = "a scan needs a database opened in order")]
    fn a_scan_of_hashed_tables_is_refused() {
        let _ = Database::open(None).unwrap().scan(0, |_, _| true);
    }

    #[test]
    fn a_second_fill_replaces_the_first() {
        let mut database = Database::open(None).unwrap();
        database.fill(100, 40, |_, _| {}).unwrap();
        database.fill(50, 8, |_, _| {}).unwrap();
        assert_eq!(value_of(&database, 7), Some(7u64.to_le_bytes().to_vec()));
        assert_eq!(value_of(&database, 99).map(|value| value.len()), Some(40));
        assert_eq!(database.keys(), 100);
    }

    #[test]
    fn put_keys_are_found_by_gets_and_scans() {
        let mut database = Database::open_in_order(None).unwrap();
        database.fill(10, 8, |_, _| {}).unwrap();
        database.put(3, b"three").unwrap();
        database.put(10, b"").unwrap();
        assert_eq!(value_of(&database, 3), Some(b"three".to_vec()));
        assert_eq!(value_of(&database, 10), Some(Vec::new()));
        let mut lengths = Vec::new();
        let count = |_, value: &[u8]| {
            lengths.push(value.len());
            lengths.len() < 11
        };
        database.scan(0, count).unwrap();
        assert_eq!(lengths, [8, 8, 8, 5, 8, 8, 8, 8, 8, 8, 0]);
    }

    #[test]
    fn threads_read_at_once() {
        let mut database = Database::open(None).unwrap();
        database.fill(10_000, 64, |_, _| {}).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let database = &database;
                scope.spawn(move || {
                    for key in (thread..10_000).step_by(4) {
                        assert_eq!(value_of(database, key).unwrap()[..8], key.to_le_bytes());
                    }
                });
            }
        });
    }

    #[test]
    fn directory_is_removed_with_the_database() {
        let parent = tempfile::tempdir().unwrap();
        let mut database = Database::open(Some(parent.path())).unwrap();
        database.fill(10, 10, |_, _| {}).unwrap();
        let directory = database.directory().to_owned();
        assert!(directory.starts_with(parent.path()) && directory.exists());
        drop(database);
        assert!(!directory.exists());
    }

    #[test]
    fn a_directory_that_cannot_be_created_is_an_error() {
        let error = Database::open(Some(Path::new("/proc/nowhere"))).unwrap_err();
        assert!(matches!(error, Error::Directory(_)), "{error}");
    }

    #[test]
    fn an_error_carries_rocksdbs_message() {
        load().unwrap();
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("CURRENT"), "no manifest\n").unwrap();
        let options = Options::for_plain_tables(Index::Hash);
        let name = CString::new(directory.path().as_os_str().as_bytes()).unwrap();
        let result = checked("open its database", |error| {
            // SAFETY: options and name are alive for the call.
            unsafe { ffi::rocksdb_open(options.raw, name.as_ptr(), error) }
        });
        let text = result.unwrap_err().to_string();
        assert!(text.starts_with("RocksDB could not open its database: "), "{text}");
        assert!(text.len() > "RocksDB could not open its database: ".len());
    }

    #[test]
    fn the_running_version_is_known() {
        let database = Database::open(None).unwrap();
        let numbers: Vec<u32> =
            database.version().split('.').map(|number| number.parse().unwrap()).collect();
        assert_eq!(numbers.len(), 3);
    }

    #[test]
    fn a_database_larger_than_available_memory_is_refused_before_a_key_is_written() {
        let mut database = Database::open(None).unwrap();
        for (keys, value_bytes) in [(u64::MAX, 64), (1 << 50, 1), (1 << 40, 1 << 20)] {
            let told = |_, _| panic!("a key was written");
            let refused = database.fill(keys, value_bytes, told).expect_err("it is too large");
            assert!(matches!(refused, Error::TooLarge { .. }), "{refused}");
        }
    }
}
