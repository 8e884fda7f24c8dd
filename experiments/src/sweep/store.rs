//! The directory that a sweep's shards share: a manifest, a file per point, a mark per shard.
//!
//! ```text
//! sweep.json            the manifest
//! points/<id>.json      one point each
//! shards/<i>-of-<n>     a started shard: the path of its scenario file
//! runs/<id>/            the files of a whole experiment, as `wave run` writes them
//! ```
//!
//! Every file appears complete or not at all, and is on disk when it appears. Files with a leading dot were being written when
//! their process was killed.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use wave_workloads::point::{Point, SearchResult};

use super::plan::Manifest;
use super::shard::Shard;
use wave_apps::machine::hash;
use wave_report::make_folder;
use wave_terminal::Failure;

const MANIFEST: &str = "sweep.json";
const POINTS: &str = "points";
const SHARDS: &str = "shards";
/// Directory for the files of whole experiments.
pub const RUNS: &str = "runs";

#[derive(Debug, Clone)]
pub struct Store {
    root: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stored {
    pub id: String,
    pub measured: Measured,
    /// Hash of `measured`: detects a truncated or changed file.
    digest: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measured {
    Point(Point),
    /// The saturation, and the points tried.
    Search(SearchResult),
    /// The object that a whole experiment printed.
    Run(Value),
}

impl Stored {
    /// The result of point `id`.
    pub fn new(id: &str, measured: Measured) -> Stored {
        let digest = digest(&measured);
        Stored { id: id.to_owned(), measured, digest }
    }

    /// Parses the point `id` from `bytes`; None if they hold another, or not all of it.
    fn parse(id: &str, bytes: &[u8]) -> Option<Stored> {
        let stored: Stored = serde_json::from_slice(bytes).ok()?;
        (stored.id == id && stored.digest == digest(&stored.measured)).then_some(stored)
    }
}

/// Numbers parse to the same bits, so a point has the same digest after reading as before writing.
fn digest(measured: &Measured) -> String {
    hash(&serde_json::to_vec(measured).expect("points have string keys only"))
}

impl Store {
    /// Opens the store in `root` for the sweep of `manifest`; creates it if it does not exist.
    ///
    /// # Errors
    /// The directory holds another sweep, or cannot be written.
    pub fn open(root: &Path, manifest: &Manifest) -> Result<Store, Failure> {
        let store = Store { root: root.to_path_buf() };
        store.refuse_other_files()?;
        for directory in [POINTS, SHARDS] {
            make_folder(&root.join(directory))?;
        }
        let file = root.join(MANIFEST);
        // Another shard may create it first; then this one compares.
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

    /// Refuses a directory with files that no sweep has made.
    fn refuse_other_files(&self) -> Result<(), Failure> {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        let foreign = |name: &String| ![MANIFEST, POINTS, SHARDS, RUNS].contains(&name.as_str());
        let mut foreign = entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| foreign(name) && !name.starts_with(".new-"));
        match foreign.next() {
            // Results of `wave merge` are beside a manifest.
            Some(name) if !self.root.join(MANIFEST).exists() => Err(Failure::Scenario(format!(
                "{} holds other files, such as {name}: give a new directory with --out",
                self.root.display()
            ))),
            _ => Ok(()),
        }
    }

    /// Opens the existing store in `root`, with its manifest.
    ///
    /// # Errors
    /// There is none.
    pub fn existing(root: &Path) -> Result<(Store, Manifest), Failure> {
        let store = Store { root: root.to_path_buf() };
        let manifest = store.manifest()?;
        Ok((store, manifest))
    }

    fn manifest(&self) -> Result<Manifest, Failure> {
        let file = self.root.join(MANIFEST);
        let text = fs::read_to_string(&file).map_err(|error| {
            let what = "expected a directory made by `wave sweep --out`";
            Failure::Scenario(format!("{}: cannot be read: {error}; {what}", file.display()))
        })?;
        Manifest::parse(&text).map_err(|why| {
            let what = "remove the directory and sweep again";
            Failure::Scenario(format!("{}: not a manifest: {why}; {what}", file.display()))
        })
    }

    /// Reads the point `id`; None if it does not exist, or its file is damaged.
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

    /// Writes a point, in place of any existing one.
    pub fn write(&self, stored: &Stored) -> Result<(), Failure> {
        let mut bytes = serde_json::to_vec(stored).expect("points have string keys only");
        bytes.push(b'\n');
        if Stored::parse(&stored.id, &bytes).is_none() {
            let why = "has a number that is not finite, and cannot be stored";
            return Err(Failure::Check(format!("point {} {why}", stored.id)));
        }
        self.replace(&format!("{POINTS}/{}.json", stored.id), &bytes)
    }

    pub fn point_file(&self, id: &str) -> PathBuf {
        self.root.join(POINTS).join(format!("{id}.json"))
    }

    /// Records that `shard` was started, from the scenario file `path`, with this program in place of agents.
    pub fn mark(&self, shard: Shard, path: &Path, agent: Option<&Path>) -> Result<(), Failure> {
        let name = format!("{SHARDS}/{}-of-{}", shard.index, shard.count);
        let agent = agent.map(|agent| format!("{}\n", agent.display())).unwrap_or_default();
        self.replace(&name, format!("{}\n{agent}", path.display()).as_bytes())
    }

    /// The started shards, each with its scenario file and, on a line of its own, its agent's program; invalid marks are skipped.
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

    /// Replaces the file `name` with `content`.
    pub fn replace(&self, name: &str, content: &[u8]) -> Result<(), Failure> {
        let file = self.root.join(name);
        let new = self.beside(&file, content).map_err(cannot_write(&file))?;
        new.persist(&file).map_err(|error| cannot_write(&file)(error.error))?;
        self.sync(&file).map_err(cannot_write(&file))
    }

    /// Creates the file `name` with `content`; returns false if it exists already.
    fn create(&self, name: &str, content: &[u8]) -> Result<bool, Failure> {
        let file = self.root.join(name);
        let new = self.beside(&file, content).map_err(cannot_write(&file))?;
        match new.persist_noclobber(&file) {
            Ok(_) => self.sync(&file).map_err(cannot_write(&file)).map(|()| true),
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(cannot_write(&file)(error.error)),
        }
    }

    /// Writes `content` to disk under a temporary name in the directory of `file`.
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

    /// Ensures that the name of `file` is on disk.
    fn sync(&self, file: &Path) -> io::Result<()> {
        File::open(file.parent().unwrap_or(&self.root))?.sync_all()
    }

    /// Removes the partial files of killed processes. Only while no process writes.
    pub fn sweep_up(&self) {
        for directory in [self.root.clone(), self.root.join(POINTS), self.root.join(SHARDS)] {
            let entries = fs::read_dir(directory).into_iter().flatten().flatten();
            for entry in entries {
                if entry.file_name().to_string_lossy().starts_with(".new-") {
                    // A file that cannot be removed does no harm.
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

/// The difference between the existing sweep and the requested one; None if they are the same.
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
