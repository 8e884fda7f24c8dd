//! The directory that a sweep's shards share: a manifest, a file per point, a mark per shard.
//!
//! ```text
//! sweep.json            the manifest
//! points/<id>.json      a point each
//! shards/<i>-of-<n>     a shard that was begun: the path of its scenario file
//! ```
//!
//! Every file appears whole or not at all, and is on the disk when it appears. Names that begin with a dot are files
//! that were being written when their process was killed.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use wave_workloads::point::{Point, SearchResult};

use super::plan::Manifest;
use super::shard::Shard;
use crate::run::machine::hash;
use wave_lab::Failure;
use wave_report::make_folder;

const MANIFEST: &str = "sweep.json";
const POINTS: &str = "points";
const SHARDS: &str = "shards";

#[derive(Debug, Clone)]
pub struct Store {
    root: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stored {
    pub id: String,
    pub measured: Measured,
    /// Hash of `measured`: a file that was cut or changed is seen.
    digest: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measured {
    Point(Point),
    /// The saturation, and the points tried.
    Search(SearchResult),
}

impl Stored {
    /// What the point `id` found.
    pub fn new(id: &str, measured: Measured) -> Stored {
        let digest = digest(&measured);
        Stored { id: id.to_owned(), measured, digest }
    }

    /// The point `id` as `bytes` hold it; none if they do not, or not all of it.
    fn parse(id: &str, bytes: &[u8]) -> Option<Stored> {
        let stored: Stored = serde_json::from_slice(bytes).ok()?;
        (stored.id == id && stored.digest == digest(&stored.measured)).then_some(stored)
    }
}

/// A number is read back to the same bits, so what was read has the digest of what was written.
fn digest(measured: &Measured) -> String {
    hash(&serde_json::to_vec(measured).expect("string keys only, so it has a form"))
}

impl Store {
    /// The store in `root` for the sweep that `manifest` tells of; made if it is not there.
    ///
    /// # Errors
    /// Where the directory holds another sweep, or cannot be written.
    pub fn open(root: &Path, manifest: &Manifest) -> Result<Store, Failure> {
        let store = Store { root: root.to_path_buf() };
        for directory in [POINTS, SHARDS] {
            make_folder(&root.join(directory))?;
        }
        let file = root.join(MANIFEST);
        // Another shard may be first: who is not, compares.
        if !file.exists() && store.create(MANIFEST, manifest.to_text().as_bytes())? {
            return Ok(store);
        }
        let there = store.manifest()?;
        match difference(&there, manifest) {
            None => Ok(store),
            Some(what) => Err(Failure::Scenario(format!(
                "{} holds a sweep of {what}: give another directory with --out, or remove this one",
                root.display()
            ))),
        }
    }

    /// The store that is in `root`, with its manifest.
    ///
    /// # Errors
    /// Where there is none.
    pub fn existing(root: &Path) -> Result<(Store, Manifest), Failure> {
        let store = Store { root: root.to_path_buf() };
        let manifest = store.manifest()?;
        Ok((store, manifest))
    }

    fn manifest(&self) -> Result<Manifest, Failure> {
        let file = self.root.join(MANIFEST);
        let text = fs::read_to_string(&file).map_err(|error| {
            let what = "expected a directory that `wave sweep --out` made";
            Failure::Scenario(format!("{}: cannot be read: {error}; {what}", file.display()))
        })?;
        Manifest::parse(&text).map_err(|why| {
            let what = "remove the directory and sweep again";
            Failure::Scenario(format!("{}: is no manifest: {why}; {what}", file.display()))
        })
    }

    /// The point `id`; none where it is not there, or its file is damaged.
    pub fn read(&self, id: &str) -> Result<Option<Stored>, Failure> {
        let file = self.point_file(id);
        match fs::read(&file) {
            Ok(bytes) => Ok(Stored::parse(id, &bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => {
                Err(Failure::Cannot(format!("{}: cannot be read: {error}", file.display())))
            }
        }
    }

    /// Puts a point in place of what is there.
    pub fn write(&self, stored: &Stored) -> Result<(), Failure> {
        let mut bytes = serde_json::to_vec(stored).expect("string keys only, so it has a form");
        bytes.push(b'\n');
        if Stored::parse(&stored.id, &bytes).is_none() {
            let why = "has a number that is not finite, which no file can hold";
            return Err(Failure::Check(format!("point {} {why}", stored.id)));
        }
        self.replace(&format!("{POINTS}/{}.json", stored.id), &bytes)
    }

    pub fn point_file(&self, id: &str) -> PathBuf {
        self.root.join(POINTS).join(format!("{id}.json"))
    }

    /// Notes that `shard` was begun, from the scenario file `path`.
    pub fn mark(&self, shard: Shard, path: &Path) -> Result<(), Failure> {
        let name = format!("{SHARDS}/{}-of-{}", shard.index, shard.count);
        self.replace(&name, format!("{}\n", path.display()).as_bytes())
    }

    /// The shards that were begun, each with its scenario file; marks that are none are passed over.
    pub fn shards(&self) -> Vec<(Shard, String)> {
        let Ok(entries) = fs::read_dir(self.root.join(SHARDS)) else {
            return Vec::new();
        };
        let mut shards: Vec<(Shard, String)> = entries
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let shard = entry.file_name().to_str()?.replace("-of-", "/").parse().ok()?;
                Some((shard, fs::read_to_string(entry.path()).ok()?.trim().to_owned()))
            })
            .collect();
        shards.sort_by_key(|(shard, _)| (shard.count, shard.index));
        shards
    }

    /// Puts `content` in place of the file `name`.
    pub fn replace(&self, name: &str, content: &[u8]) -> Result<(), Failure> {
        let file = self.root.join(name);
        let new = self.beside(&file, content).map_err(cannot_write(&file))?;
        new.persist(&file).map_err(|error| cannot_write(&file)(error.error))?;
        self.sync(&file).map_err(cannot_write(&file))
    }

    /// Puts `content` where there is no file `name` yet; tells whether there was none.
    fn create(&self, name: &str, content: &[u8]) -> Result<bool, Failure> {
        let file = self.root.join(name);
        let new = self.beside(&file, content).map_err(cannot_write(&file))?;
        match new.persist_noclobber(&file) {
            Ok(_) => self.sync(&file).map_err(cannot_write(&file)).map(|()| true),
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(cannot_write(&file)(error.error)),
        }
    }

    /// `content`, on the disk, under a name of its own in the directory of `file`.
    fn beside(&self, file: &Path, content: &[u8]) -> io::Result<tempfile::NamedTempFile> {
        let directory = file.parent().unwrap_or(&self.root);
        let mut new = tempfile::Builder::new()
            .prefix(".new-")
            .permissions(fs::Permissions::from_mode(0o666)) // less the umask, as for any file
            .tempfile_in(directory)?;
        new.write_all(content)?;
        new.as_file().sync_all()?;
        Ok(new)
    }

    /// The name of `file` is on the disk.
    fn sync(&self, file: &Path) -> io::Result<()> {
        File::open(file.parent().unwrap_or(&self.root))?.sync_all()
    }

    /// Removes what killed processes left half written. Only where nobody writes.
    pub fn sweep_up(&self) {
        for directory in [self.root.clone(), self.root.join(POINTS), self.root.join(SHARDS)] {
            let entries = fs::read_dir(directory).into_iter().flatten().flatten();
            for entry in entries {
                if entry.file_name().to_string_lossy().starts_with(".new-") {
                    // One that stays does no harm.
                    let _ = fs::remove_file(entry.path());
                }
            }
        }
    }
}

fn cannot_write(file: &Path) -> impl FnOnce(io::Error) -> Failure {
    let file = file.display().to_string();
    move |error| Failure::Cannot(format!("{file}: cannot be written: {error}"))
}

/// In what the sweep that is there differs from the one asked for; none if they are the same.
fn difference(there: &Manifest, asked: &Manifest) -> Option<String> {
    if there == asked {
        return None;
    }
    Some(if there.scenario != asked.scenario {
        format!("another scenario, {}", there.scenario)
    } else if there.version != asked.version {
        format!("version {} of this program, which is {}", there.version, asked.version)
    } else if there.text != asked.text {
        let lines = there.text.lines().zip(asked.text.lines());
        let same = lines.take_while(|(there, asked)| there == asked).count();
        format!("another text of {}, which differs from line {} on", there.scenario, same + 1)
    } else {
        "this scenario with other costs of its links (a file that it names has changed)".to_owned()
    })
}
