//! The thread that reads the file, and the lanes that its records go to. Records of one key go to one
//! lane, in order, so that the later line wins. Memory is bounded by bytes: a record holds a share of
//! them until it's committed.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::Context;
use flate2::read::MultiGzDecoder;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::FileFormat;
use super::lines::Lines;
use super::records::{Record, Shape};
use super::source::{Bad, Source};

/// Bytes of records that are read and not yet committed.
const WAITING_BYTES_MAX: u32 = 8 << 20;
/// What a record needs beside its bytes.
const RECORD_BYTES: usize = 128;
/// How a file begins that is compressed with gzip.
const GZIP: &[u8] = b"\x1f\x8b";
const READ_BYTES: usize = 256 << 10;

/// A record on its way, with its share of the memory.
pub(crate) struct Item {
    pub(crate) record: Record,
    _bytes: OwnedSemaphorePermit,
}

/// What the thread says besides records.
pub(crate) enum Report {
    /// A line that is not loaded.
    Bad(Bad),
    /// The file can't be read any further.
    Failed { line: u64, error: io::Error },
}

/// The input: a file or standard input.
pub(crate) struct Input {
    reader: Box<dyn BufRead + Send>,
    /// For messages.
    pub(crate) name: String,
    /// Its length, where it has one.
    pub(crate) bytes: Option<u64>,
}

impl Input {
    /// `-` is standard input. What is compressed with gzip is read as what it holds.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        if path == Path::new("-") {
            return Self::plain_or_gzip("standard input".into(), io::stdin(), None);
        }
        let name = path.display().to_string();
        let open = || -> io::Result<(File, Option<u64>)> {
            let file = File::open(path)?;
            let metadata = file.metadata()?;
            if metadata.is_dir() {
                return Err(io::ErrorKind::IsADirectory.into());
            }
            let bytes = metadata.is_file().then_some(metadata.len());
            Ok((file, bytes))
        };
        let (file, bytes) = open().with_context(|| format!("cannot read {name}"))?;
        Self::plain_or_gzip(name, file, bytes)
    }

    fn plain_or_gzip(
        name: String,
        file: impl io::Read + Send + 'static,
        bytes: Option<u64>,
    ) -> anyhow::Result<Self> {
        let mut reader = BufReader::with_capacity(READ_BYTES, file);
        let is_gzip = reader
            .fill_buf()
            .with_context(|| format!("cannot read {name}"))?
            .starts_with(GZIP);
        Ok(if !is_gzip {
            Self {
                reader: Box::new(reader),
                name,
                bytes,
            }
        } else {
            Self {
                reader: Box::new(BufReader::with_capacity(
                    READ_BYTES,
                    MultiGzDecoder::new(reader),
                )),
                name,
                // How much that will be isn't known.
                bytes: None,
            }
        })
    }
}

/// What the thread shares with the rest.
#[derive(Clone, Default)]
pub(crate) struct Shared {
    /// Bytes that were read.
    pub(crate) bytes: Arc<AtomicU64>,
    /// Read no further.
    pub(crate) stop: Arc<AtomicBool>,
}

/// How to read.
pub(crate) struct Reading {
    pub(crate) input: Input,
    pub(crate) format: FileFormat,
    pub(crate) shape: Shape,
    pub(crate) lanes: usize,
    /// Records that wait in a lane.
    pub(crate) lane_records: usize,
    /// Go on behind lines that can't be loaded.
    pub(crate) skip_bad: bool,
}

/// What comes of the thread.
pub(crate) struct Started {
    pub(crate) lanes: Vec<mpsc::Receiver<Item>>,
    pub(crate) reports: mpsc::Receiver<Report>,
    /// There is a record to load. Dropped where there is none.
    pub(crate) first: oneshot::Receiver<()>,
}

impl Reading {
    /// Starts the thread. The lanes end with the file, or with what can't be read any further. A thread
    /// that waits for standard input is left behind when the program ends.
    pub(crate) fn start(self, shared: Shared) -> io::Result<Started> {
        let (reports, report_receiver) = mpsc::channel(64);
        let (first, first_receiver) = oneshot::channel();
        let mut first = Some(first);
        let (lanes, receivers): (Vec<_>, Vec<_>) = (0..self.lanes)
            .map(|_| mpsc::channel(self.lane_records))
            .unzip();
        let runtime = Handle::current();
        let lines = Lines::new(self.input.reader, shared.bytes.clone());
        let mut source = Source::new(lines, self.format, self.shape);
        let skip_bad = self.skip_bad;
        std::thread::Builder::new()
            .name("read".into())
            .spawn(move || {
                let memory = Arc::new(Semaphore::new(WAITING_BYTES_MAX as usize));
                while !shared.stop.load(Ordering::Relaxed) {
                    match source.next() {
                        Ok(None) => return,
                        Ok(Some(Ok(record))) => {
                            let share = u32::try_from(record.size() + RECORD_BYTES)
                                .unwrap_or(u32::MAX)
                                .min(WAITING_BYTES_MAX);
                            let permit = memory.clone().acquire_many_owned(share);
                            let Ok(permit) = runtime.block_on(permit) else {
                                return;
                            };
                            if let Some(first) = first.take() {
                                let _ = first.send(());
                            }
                            let lane = lane_of(&record.key, lanes.len());
                            let item = Item {
                                record,
                                _bytes: permit,
                            };
                            if lanes[lane].blocking_send(item).is_err() {
                                return;
                            }
                        }
                        Ok(Some(Err(bad))) => {
                            let ends = bad.fatal || !skip_bad;
                            if reports.blocking_send(Report::Bad(bad)).is_err() || ends {
                                return;
                            }
                        }
                        Err(error) => {
                            let line = source.line() + 1;
                            let _ = reports.blocking_send(Report::Failed { line, error });
                            return;
                        }
                    }
                }
            })?;
        Ok(Started {
            lanes: receivers,
            reports: report_receiver,
            first: first_receiver,
        })
    }
}

fn lane_of(key: &[u8], lanes: usize) -> usize {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    (hasher.finish() % lanes.max(1) as u64) as usize
}

/// The format to read a file in.
///
/// # Errors
/// It isn't given, and the name doesn't tell.
pub(crate) fn format_of(path: &PathBuf, given: Option<FileFormat>) -> Result<FileFormat, String> {
    match given {
        Some(format) => Ok(format),
        None if path == Path::new("-") => Ok(FileFormat::Jsonl),
        None => FileFormat::of(path).ok_or_else(|| {
            format!(
                "the name {} doesn't tell the format; say --format jsonl or --format csv",
                path.display()
            )
        }),
    }
}
