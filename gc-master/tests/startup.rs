//! What a master does with the state in its own folder when it is given a register that it shares with others.

use std::path::Path;

use percolator_gc_master::{Error, Options, Server, Settings};
use percolator_server::RegisterLocation;

/// Those of a master that begins a cluster in this folder, alone and at any port.
pub(crate) fn options(folder: &Path) -> Options {
    Options {
        data_dir: folder.to_owned(),
        listen: "127.0.0.1:0".parse().unwrap(),
        advertise: None,
        register: None,
        server: "master-0".into(),
        metrics_listen: None,
        traces: None,
        new_cluster: true,
        settings: Settings::default(),
        manifest: None,
    }
}

async fn bind(folder: &Path, register: Option<&Path>, new_cluster: bool) -> Result<Server, Error> {
    Server::bind(Options {
        register: register.map(|folder| RegisterLocation::File(folder.into())),
        new_cluster,
        ..options(folder)
    })
    .await
}

#[tokio::test]
async fn a_state_that_moved_into_a_register_is_not_gone_on_from() {
    let place = tempfile::tempdir().unwrap();
    let (own, register) = (place.path().join("own"), place.path().join("register"));
    drop(bind(&own, None, true).await.unwrap());
    let state = own.join("directory");
    assert!(state.exists());
    drop(bind(&own, Some(&register), false).await.unwrap());
    assert!(!state.exists() && register.join("master-state").exists());
    let refused = bind(&own, None, false).await.err().map(|it| it.to_string());
    let refused = refused.unwrap();
    assert!(refused.contains("was moved into a register"), "{refused}");
    assert!(refused.contains("--register"), "{refused}");
    // With it, again and again.
    drop(bind(&own, Some(&register), false).await.unwrap());
}

#[tokio::test]
async fn a_state_is_not_given_up_for_another_clusters() {
    let place = tempfile::tempdir().unwrap();
    let register = place.path().join("register");
    drop(
        bind(&place.path().join("first"), Some(&register), true)
            .await
            .unwrap(),
    );
    let own = place.path().join("own");
    drop(bind(&own, None, true).await.unwrap());
    let before = std::fs::read(own.join("directory")).unwrap();
    for new_cluster in [false, true] {
        let refused = bind(&own, Some(&register), new_cluster).await.err();
        assert!(
            matches!(refused, Some(Error::TwoStates { .. })),
            "{refused:?}"
        );
        let refused = refused.unwrap().to_string();
        assert!(refused.contains("is of another cluster"), "{refused}");
    }
    assert_eq!(std::fs::read(own.join("directory")).unwrap(), before);
    drop(bind(&own, None, false).await.unwrap());
}
