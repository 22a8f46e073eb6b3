//! Reading the log at open. The last segment ends where no record is any more; behind that lies what the
//! file held before it was written over.

use std::{collections::VecDeque, path::Path};

use bytes::Bytes;

use super::{
    file_name,
    record::{self, Place, ReadRecord},
};
use crate::{Batch, Error, disk::Disk};

/// The result of a replay.
pub(crate) struct Replayed {
    /// The segments and their lengths, the oldest first.
    pub(crate) segments: VecDeque<(u64, u64)>,
    /// The number of the next one.
    pub(crate) next: u64,
    /// Number of records.
    pub(crate) records: u64,
    /// The size of a record at the end that was not whole, and was cut off; 0 if there was none.
    pub(crate) torn_bytes: u64,
}

/// Numbers of the segments among file names, in order.
pub(super) fn segments(names: &[String]) -> Vec<u64> {
    let mut segments: Vec<u64> = names
        .iter()
        .filter_map(|name| name.strip_suffix(".log")?.parse().ok())
        .collect();
    segments.sort_unstable();
    segments
}

/// Gives every group of the log to `apply`, in order. `may_go`: whether the segments up to one of so many bytes are not
/// needed any more, asked behind each but the last. A torn record at the end of the last segment is
/// cut off, durably; anything else that is not a record is [`Error::Corrupt`].
pub(crate) fn replay(
    disk: &dyn Disk,
    path: &Path,
    mut apply: impl FnMut(&[Batch]) -> Result<(), Error>,
    mut may_go: impl FnMut(u64) -> Result<bool, Error>,
) -> Result<Replayed, Error> {
    let names = disk.list().map_err(Error::io("list", path))?;
    let mut replayed = Replayed {
        segments: VecDeque::new(),
        next: 1,
        records: 0,
        torn_bytes: 0,
    };
    let segments = segments(&names);
    for (at, &segment) in segments.iter().enumerate() {
        if at > 0 && segments[at - 1] + 1 != segment {
            return Err(Error::Corrupt {
                path: path.join(file_name(segments[at - 1] + 1)),
                offset: 0,
                detail: "this segment of the log is missing".to_owned(),
            });
        }
        let name = file_name(segment);
        let file = path.join(&name);
        let is_last = at + 1 == segments.len();
        let content = Bytes::from(disk.read(&name).map_err(Error::io("read", &file))?);
        let mut rest = content.clone();
        while !rest.is_empty() {
            let offset = (content.len() - rest.len()) as u64;
            let place = Place { segment, offset };
            let corrupt = |detail: String| Error::Corrupt {
                path: file.clone(),
                offset,
                detail,
            };
            match check(&rest, place) {
                Ok((payload, bytes)) => {
                    let group = record::decode(payload).map_err(corrupt)?;
                    apply(std::slice::from_ref(&group))?;
                    replayed.records += 1;
                    rest = rest.slice(bytes..);
                }
                Err(InvalidRecord::Torn { bytes }) if is_last => {
                    replayed.torn_bytes = bytes;
                    break;
                }
                Err(InvalidRecord::Torn { .. }) => {
                    return Err(corrupt(
                        "the record is not whole, but the log goes on in the next segment"
                            .to_owned(),
                    ));
                }
                Err(InvalidRecord::Damaged(detail)) => return Err(corrupt(detail)),
            }
        }
        let whole = content.slice(..content.len() - rest.len());
        if is_last {
            // A process that was killed before its sync, or whose sync failed, leaves a record that is only in memory:
            // nobody may see it before it is on the device. After a failed sync the system takes it for written, so
            // that only what is written anew comes there (Rebello et al., "Can Applications Recover from fsync
            // Failures?").
            disk.rewrite(&name, &whole)
                .map_err(Error::io("write the end of the log anew", &file))?;
        }
        let bytes = whole.len() as u64;
        replayed.segments.push_back((segment, bytes));
        replayed.next = segment + 1;
        if !is_last && may_go(bytes)? {
            super::remove_through(disk, segment).map_err(Error::io("remove segments of", path))?;
            replayed.segments.clear();
        }
    }
    Ok(replayed)
}

/// A record that can't be replayed.
enum InvalidRecord {
    /// Nothing valid lies behind it. `bytes`: of the record, if its header is sound.
    Torn {
        bytes: u64,
    },
    Damaged(String),
}

/// The record at the beginning of `rest`, or what is wrong with it.
fn check(rest: &Bytes, place: Place) -> Result<(Bytes, usize), InvalidRecord> {
    let damaged = |what: &str| {
        Err(InvalidRecord::Damaged(format!(
            "{what}, and the log goes on behind it"
        )))
    };
    match record::read(rest, place) {
        ReadRecord::Record { payload, bytes } => Ok((payload, bytes)),
        ReadRecord::Short => Err(InvalidRecord::Torn {
            bytes: rest.len() as u64,
        }),
        ReadRecord::BadPayload { bytes } if has_record_behind(rest, bytes, place) => {
            damaged("the record's checksum is wrong")
        }
        ReadRecord::BadHeader if has_record_behind(rest, 1, place) => {
            damaged("the checksum of the record's header is wrong")
        }
        ReadRecord::BadPayload { bytes } => Err(InvalidRecord::Torn {
            bytes: bytes as u64,
        }),
        ReadRecord::BadHeader => Err(InvalidRecord::Torn { bytes: 0 }),
    }
}

/// Whether a record of this segment lies `from` bytes behind the place or later. Without a sound header
/// the place of the next one is unknown: any place is tried. What an older segment has left in the
/// file is of another place, and none.
fn has_record_behind(rest: &Bytes, from: usize, place: Place) -> bool {
    (from..rest.len())
        .filter(|skip| rest[*skip..].starts_with(&record::MAGIC))
        .any(|skip| {
            let place = Place {
                offset: place.offset + skip as u64,
                ..place
            };
            // A sound header is enough: whether its payload is damaged too does not matter.
            !matches!(
                record::read(&rest.slice(skip..), place),
                ReadRecord::BadHeader
            )
        })
}
