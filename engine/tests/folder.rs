//! A folder is opened by its owner, and by nobody else.

use std::{
    fs,
    path::{Path, PathBuf},
};

use percolator_engine::{
    Batch, Column, Engine, EngineKind, Error, FORMAT, Options, adopt_cluster, identity, open,
};

const ON_DISK: [EngineKind; 2] = [EngineKind::Redb, EngineKind::Sled];

fn options(kind: EngineKind, cluster: Option<&str>) -> Options {
    Options {
        cluster_id: cluster.map(str::to_owned),
        reserve_bytes: 0,
        last_reserve_bytes: 0,
        ..Options::new(kind, "tablet-0")
    }
}

fn refused(folder: &Path, options: &Options) -> Error {
    open(folder, options).map(|_| ()).expect_err("a refusal")
}

#[test]
fn names_of_engines() {
    for kind in EngineKind::ALL {
        assert_eq!(kind.to_string().parse(), Ok(kind));
    }
    let error = "Sled".parse::<EngineKind>().expect_err("a refusal");
    assert!(error.to_string().contains("redb, sled, memory"), "{error}");
}

#[test]
fn another_engine_server_cluster_or_format() {
    let [redb, sled] = ON_DISK;
    let parent = tempfile::tempdir().expect("a folder");
    // Made with all that is missing above it.
    let folder = &parent.path().join("a/b/c");
    drop(open(folder, &options(sled, None)).expect("an engine"));

    let error = refused(folder, &options(redb, None));
    assert!(
        matches!(&error, Error::WrongEngine { found, .. } if found == "sled"),
        "{error}"
    );

    let other = Options {
        server: "tablet-1".to_owned(),
        ..options(sled, None)
    };
    let error = refused(folder, &other);
    assert!(matches!(error, Error::WrongServer { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("tablet-0") && text.contains("tablet-1"),
        "{text}"
    );

    // The cluster comes later, then stays.
    drop(open(folder, &options(sled, Some("blue"))).expect("an engine"));
    drop(open(folder, &options(sled, None)).expect("an engine"));
    let error = refused(folder, &options(sled, Some("green")));
    assert!(matches!(error, Error::WrongServer { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("blue") && text.contains("green"), "{text}");

    let format = folder.join("FORMAT");
    let text = fs::read_to_string(&format).expect("FORMAT");
    // A digit that flipped is damage, and not another cluster's folder or another server's.
    for (is, becomes) in [
        ("blue", "blud"),
        ("tablet-0", "tablet-4"),
        ("sled", "sled2"),
    ] {
        fs::write(&format, text.replace(is, becomes)).expect("a write");
        let error = refused(folder, &options(sled, Some("blue")));
        assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    }
    fs::write(
        &format,
        text.replace(&format!("\"format\": {FORMAT}"), "\"format\": 7"),
    )
    .expect("a write");
    let error = refused(folder, &options(sled, None));
    assert!(
        matches!(
            error,
            Error::WrongFormat {
                found: 7,
                expected: FORMAT,
                ..
            }
        ),
        "{error}"
    );
    fs::write(&format, "{").expect("a write");
    let error = refused(folder, &options(sled, None));
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    fs::remove_file(&format).expect("a removal");
    let error = refused(folder, &options(sled, None));
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
}

#[test]
fn adopting_a_cluster() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    assert!(adopt_cluster(folder, "blue").is_err());
    assert_eq!(identity(folder).expect("an identity"), None);
    let engine = open(folder, &options(EngineKind::Sled, None)).expect("an engine");
    // Also while it is open.
    adopt_cluster(folder, "blue").expect("adopted");
    adopt_cluster(folder, "blue").expect("adopted already");
    let error = adopt_cluster(folder, "green").expect_err("a refusal");
    assert!(matches!(error, Error::WrongServer { .. }), "{error}");
    drop(engine);
    let found = identity(folder).expect("an identity").expect("one");
    assert_eq!(found.cluster_id.as_deref(), Some("blue"));
    refused(folder, &options(EngineKind::Sled, Some("green")));
}

#[test]
fn a_folder_in_use_is_locked() {
    for kind in ON_DISK {
        let folder = tempfile::tempdir().expect("a folder");
        let engine = open(folder.path(), &options(kind, None)).expect("an engine");
        let error = refused(folder.path(), &options(kind, None));
        assert!(matches!(error, Error::Locked { .. }), "{error}");
        let holder = format!("process {}", std::process::id());
        assert!(error.to_string().contains(&holder), "{error}");
        drop(engine);
        drop(open(folder.path(), &options(kind, None)).expect("an engine"));
    }
}

fn segments(folder: &Path) -> usize {
    fs::read_dir(folder.join("log")).expect("the log").count()
}

fn fill(engine: &dyn Engine, from: u32, to: u32) {
    for i in from..to {
        let mut batch = Batch::default();
        batch.put(Column::Data, i.to_be_bytes().to_vec(), vec![7; 4000]);
        engine.commit(&[batch]).expect("a commit");
    }
}

fn store_file(folder: &Path, kind: EngineKind) -> PathBuf {
    folder.join("store").join(match kind {
        EngineKind::Sled => "db",
        _ => "data.redb",
    })
}

/// Checkpoints in the background cut the log; what they leave is replayed.
#[test]
fn rotation_and_replay() {
    for kind in ON_DISK {
        let folder = tempfile::tempdir().expect("a folder");
        let options = Options {
            segment_bytes: 100_000,
            ..options(kind, None)
        };
        for round in 0..3_u32 {
            let engine = open(folder.path(), &options).expect("an engine");
            for i in 0..round * 200 {
                let found = engine.get(Column::Data, &i.to_be_bytes()).expect("a get");
                assert_eq!(found.map(|value| value.len()), Some(4000), "{kind}: {i}");
            }
            fill(&*engine, round * 200, (round + 1) * 200);
            if round == 1 {
                engine.close().expect("a close");
                assert_eq!(segments(folder.path()), 1, "{kind}: all is in the store");
                assert_eq!(engine.stats().log_bytes, 0);
            }
        }
    }
}

/// A damaged segment on a real disk: the error names the path and the place, and nothing is changed.
#[test]
fn a_damaged_log_is_refused() {
    for kind in ON_DISK {
        let folder = tempfile::tempdir().expect("a folder");
        let engine = open(folder.path(), &options(kind, None)).expect("an engine");
        fill(&*engine, 0, 3);
        drop(engine);
        let file = fs::read_dir(folder.path().join("log"))
            .expect("the log")
            .map(|entry| entry.expect("an entry").path())
            .next()
            .expect("a segment");
        let mut content = fs::read(&file).expect("the segment");
        content[5000] ^= 0x10;
        fs::write(&file, &content).expect("a write");
        match refused(folder.path(), &options(kind, None)) {
            Error::Corrupt { path, offset, .. } => {
                assert_eq!(path, file);
                assert!(offset > 4000 && offset < 5000, "{offset}");
            }
            other => panic!("{other}"),
        }
        assert_eq!(fs::read(&file).expect("the segment"), content);
    }
}

/// The log is half of the data: without it the store alone is refused.
/// The log holds what no checkpoint has brought into the store, and not what came before.
#[test]
fn a_lost_store_is_refused() {
    for kind in ON_DISK {
        let folder = tempfile::tempdir().expect("a folder");
        let engine = open(folder.path(), &options(kind, None)).expect("an engine");
        fill(&*engine, 0, 3);
        engine.close().expect("closed");
        drop(engine);
        let store = folder.path().join("store");
        let file = store_file(folder.path(), kind);
        let losses: [&dyn Fn(); 3] = [
            &|| fs::write(&file, "").expect("cut to nothing"),
            &|| fs::remove_file(&file).expect("a removal"),
            &|| fs::remove_dir_all(&store).expect("a removal"),
        ];
        for lose in losses {
            lose();
            let error = refused(folder.path(), &options(kind, None));
            assert!(matches!(error, Error::Corrupt { .. }), "{error}");
            assert!(error.to_string().contains("the store"), "{error}");
        }
    }
}

/// A process that was killed while it made the store leaves a file of zeros.
#[test]
fn a_store_that_was_never_finished_is_made_again_from_the_whole_log() {
    let kind = EngineKind::Redb;
    let folder = tempfile::tempdir().expect("a folder");
    let engine = open(folder.path(), &options(kind, None)).expect("an engine");
    fill(&*engine, 0, 3);
    drop(engine);
    let zeros = || fs::write(store_file(folder.path(), kind), [0; 8192]).expect("zeros");
    zeros();
    let engine = open(folder.path(), &options(kind, None)).expect("an engine");
    for i in 0..3_u32 {
        let found = engine.get(Column::Data, &i.to_be_bytes()).expect("a get");
        assert!(found.is_some(), "{i}");
    }
    engine.close().expect("closed");
    drop(engine);
    // The log alone doesn't have all of it any more.
    zeros();
    refused(folder.path(), &options(kind, None));
}

#[test]
fn a_lost_log_is_refused() {
    for kind in ON_DISK {
        let folder = tempfile::tempdir().expect("a folder");
        let engine = open(folder.path(), &options(kind, None)).expect("an engine");
        fill(&*engine, 0, 3);
        drop(engine);
        fs::remove_dir_all(folder.path().join("log")).expect("a removal");
        let error = refused(folder.path(), &options(kind, None));
        assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    }
}
