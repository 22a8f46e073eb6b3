//! A torn record is cut off, and a damaged one refused.

use crate::common::{FaultyDisk, log_path, open, put};
use percolator_engine::{Batch, Column, Direction, Engine, Error};

fn keys(engine: &dyn Engine) -> Vec<String> {
    engine
        .scan(Column::Data, b"", b"", Direction::Forward)
        .expect("a scan")
        .map(|pair| String::from_utf8_lossy(&pair.expect("a pair").0).into_owned())
        .collect()
}

fn key(i: usize) -> String {
    format!("key{i:03}")
}

fn expected(count: usize) -> Vec<String> {
    (0..count).map(key).collect()
}

/// A disk with `count` records in segments of `segment_bytes`; the length of the last segment before
/// each of its records, and after the last.
fn disk_with(count: usize, segment_bytes: u64) -> (FaultyDisk, Vec<usize>) {
    let disk = FaultyDisk::default();
    let engine = open(&disk, segment_bytes).expect("an engine");
    let mut ends = vec![0];
    for i in 0..count {
        engine
            .commit(&[put(&key(i), "value"), Batch::default()])
            .expect("a commit");
        let state = disk.state();
        let (_, last) = state.files.last_key_value().expect("a segment");
        if last.is_empty() {
            ends.clear();
        }
        ends.push(last.len());
    }
    (disk, ends)
}

#[test]
fn a_tail_torn_at_any_byte_is_cut_off() {
    let (disk, ends) = disk_with(4, 1 << 20);
    let files = disk.state().files.clone();
    let (name, whole) = files.last_key_value().expect("a segment");
    for len in ends[3]..ends[4] {
        for filler in [None, Some(0), Some(0xee)] {
            let mut torn = whole[..len].to_vec();
            if let Some(filler) = filler {
                // The length reached the device, the bytes did not.
                torn.resize(ends[4], filler);
            }
            let disk = FaultyDisk::with([(name.clone(), torn)].into());
            let engine = open(&disk, 1 << 20).expect("an engine");
            assert_eq!(keys(&engine), expected(3), "torn at {len}, {filler:?}");
            assert_eq!(disk.state().files[name].len(), ends[3]);
            engine.commit(&[put("key003", "again")]).expect("a commit");
            drop(engine);
            let engine = open(&disk, 1 << 20).expect("an engine");
            assert_eq!(keys(&engine), expected(4));
        }
    }
}

/// A new segment is written over an old one's file: what is left of that is nobody's record.
#[test]
fn what_an_older_segment_left_behind_is_not_replayed() {
    let (old, _) = disk_with(10, 1 << 20);
    let (first, left_over) = old.state().files.clone().pop_last().expect("a segment");
    // Each length that the new segment can reach: none, some, and more than the old one.
    for count in [0, 1, 4, 10, 12] {
        let disk = FaultyDisk::with([(first.clone(), left_over.clone())].into());
        disk.state().left_over = left_over.clone();
        let engine = open(&disk, 1 << 20).expect("an engine");
        for i in 10..10 + count {
            engine
                .commit(&[put(&key(i), "VALUE"), Batch::default()])
                .expect("a commit");
        }
        // Killed here, and killed again at once.
        for _ in 0..2 {
            let disk = FaultyDisk::with(disk.state().files.clone());
            let engine = open(&disk, 1 << 20).expect("an engine");
            assert_eq!(keys(&engine), expected(10 + count));
            engine.commit(&[put("key999", "more")]).expect("a commit");
        }
        // Torn anywhere in the last record, over the old content.
        let files = disk.state().files.clone();
        let (name, whole) = files.last_key_value().expect("a segment");
        let record = if count == 0 { 0 } else { left_over.len() / 10 };
        // No byte of a value is as it was before, so the record is torn wherever it is cut.
        for torn in 1..=record {
            let cut = record * count - torn;
            let mut content = whole[..cut].to_vec();
            content.extend_from_slice(left_over.get(cut..).unwrap_or_default());
            let files = [(first.clone(), left_over.clone()), (name.clone(), content)];
            let disk = FaultyDisk::with(files.into());
            let engine = open(&disk, 1 << 20).expect("an engine");
            assert_eq!(keys(&engine), expected(10 + count - 1), "torn by {torn}");
        }
    }
}

#[test]
fn damage_is_distinguished_from_a_torn_tail_also_over_an_older_segment() {
    let (disk, ends) = disk_with(4, 1 << 20);
    let files = disk.state().files.clone();
    let (name, whole) = files.last_key_value().expect("a segment");
    let mut longer = whole.clone();
    longer.extend(vec![0xee; 300]);
    for at in 0..ends[4] {
        let mut damaged = longer.clone();
        damaged[at] ^= 1;
        let disk = FaultyDisk::with([(name.clone(), damaged)].into());
        match open(&disk, 1 << 20) {
            Ok(engine) if at >= ends[3] => assert_eq!(keys(&engine), expected(3), "byte {at}"),
            Err(Error::Corrupt { .. }) if at < ends[3] => {}
            other => panic!("byte {at}: {:?}", other.map(|_| ())),
        }
    }
}

#[test]
fn a_flipped_bit_before_the_last_record_is_refused() {
    let (disk, ends) = disk_with(4, 1 << 20);
    let files = disk.state().files.clone();
    let (name, whole) = files.last_key_value().expect("a segment");
    for at in 0..ends[3] {
        for bit in 0..8 {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << bit;
            let disk = FaultyDisk::with([(name.clone(), damaged.clone())].into());
            let record = ends[..4]
                .iter()
                .rev()
                .find(|start| **start <= at)
                .expect("a record");
            match open(&disk, 1 << 20).map(|_| ()) {
                Err(Error::Corrupt { path, offset, .. }) => {
                    assert_eq!(path, log_path().join(name));
                    assert_eq!(offset, *record as u64, "byte {at}, bit {bit}");
                }
                other => panic!("byte {at}, bit {bit}: {other:?}"),
            }
            assert_eq!(disk.state().files[name], damaged, "nothing was changed");
        }
    }
}

/// It reads as a torn one: the group was perhaps never acknowledged.
#[test]
fn a_flipped_bit_in_the_last_record_is_a_torn_tail() {
    let (disk, ends) = disk_with(2, 1 << 20);
    let files = disk.state().files.clone();
    let (name, whole) = files.last_key_value().expect("a segment");
    for at in ends[1]..ends[2] {
        let mut damaged = whole.clone();
        damaged[at] ^= 4;
        let disk = FaultyDisk::with([(name.clone(), damaged)].into());
        let engine = open(&disk, 1 << 20).expect("an engine");
        assert_eq!(keys(&engine), expected(1), "byte {at}");
    }
}

#[test]
fn all_segments_are_replayed() {
    let (disk, _) = disk_with(50, 200);
    assert!(disk.state().files.len() > 5);
    let engine = open(&disk, 200).expect("an engine");
    assert_eq!(keys(&engine), expected(50));
}

#[test]
fn a_hole_between_segments_is_refused() {
    let (disk, _) = disk_with(50, 200);
    let name = disk.state().files.keys().nth(2).expect("a segment").clone();
    disk.state().files.remove(&name);
    match open(&disk, 200).map(|_| ()) {
        Err(Error::Corrupt { path, .. }) => assert_eq!(path, log_path().join(name)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_torn_record_in_an_earlier_segment_is_refused() {
    let (disk, _) = disk_with(50, 200);
    let mut name = String::new();
    if let Some((second, content)) = disk.state().files.iter_mut().nth(1) {
        content.pop();
        name.clone_from(second);
    }
    match open(&disk, 200).map(|_| ()) {
        Err(Error::Corrupt { path, .. }) => assert_eq!(path, log_path().join(name)),
        other => panic!("{other:?}"),
    }
}

/// A value may hold what reads as a log: bytes of one, or a header from elsewhere.
#[test]
fn a_log_inside_of_a_value_is_no_record() {
    let (inner, _) = disk_with(3, 1 << 20);
    let bytes = inner
        .state()
        .files
        .values()
        .next()
        .expect("a segment")
        .clone();
    let disk = FaultyDisk::default();
    let engine = open(&disk, 1 << 20).expect("an engine");
    engine.commit(&[put("key000", "value")]).expect("a commit");
    let mut batch = Batch::default();
    batch.put(Column::Data, "key001", bytes.repeat(20));
    engine.commit(&[batch]).expect("a commit");
    drop(engine);
    // Tear its header: nothing behind it may pass for a record.
    let state = disk.state();
    let (name, mut content) = state
        .files
        .iter()
        .next()
        .map(|(n, c)| (n.clone(), c.clone()))
        .expect("a segment");
    drop(state);
    let start = 16 + 1 + 4 + 4 + 6 + 5;
    content[start..start + 16].fill(0);
    let disk = FaultyDisk::with([(name, content)].into());
    let engine = open(&disk, 1 << 20).expect("an engine");
    assert_eq!(keys(&engine), expected(1));
}
