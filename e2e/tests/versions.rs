//! The way from v1alpha1 to v1, as docs/design/api-versions.md plans it: an object that was stored by an old release is read and
//! changed by the new version's name, is stored anew, and can go back; the old operator reconciles it all the time.

use percolator_e2e::api::stored;
use percolator_e2e::{Kube, Namespace, kill_operators, kubectl, say, small, wait, written};
use serde_json::{Value, json};

const DEFINITION: &str = "percolatorclusters.percolator.dev";
const OLD: &str = "percolatorclusters.v1alpha1.percolator.dev";
const NEW: &str = "percolatorclusters.v1.percolator.dev";
/// How often an object is written until it is stored as the definition says.
const TRIES: u32 = 100;
/// The path of the versions in the definition.
const VERSION_OLD: usize = 0;
const VERSION_NEW: usize = 1;

/// The definition with both versions, until the value goes.
struct BothVersions<'a> {
    space: &'a Namespace,
}

fn json_of(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// Changes the definition, by patches that are too long for an argument.
fn patch(more: &[&str], changes: &Value) -> Result<String, String> {
    let file = written(&changes.to_string())?;
    let path = file.path().display().to_string();
    let patch = [
        "patch",
        "crd",
        DEFINITION,
        "--type=json",
        "--patch-file",
        &path,
    ];
    kubectl(&[&patch, more].concat())
}

fn object(space: &Namespace, kind: &str) -> Result<Value, String> {
    json_of(&space.kubectl(&["get", kind, "kept", "-o", "json"])?)
}

fn definition() -> Result<Value, String> {
    json_of(&kubectl(&["get", "crd", DEFINITION, "-o", "json"])?)
}

impl<'a> BothVersions<'a> {
    /// Serves v1 as well, with the fields of v1alpha1.
    fn serve(space: &'a Namespace) -> Self {
        let definition = definition().expect("the chart's definition");
        let mut version = definition["spec"]["versions"][VERSION_OLD].clone();
        version["name"] = "v1".into();
        version["storage"] = false.into();
        let add = json!([{"op": "add", "path": "/spec/versions/-", "value": version}]);
        let both = Self { space };
        patch(&[], &add).expect("both versions");
        both
    }

    /// Stores objects in one of the versions from now on, and those that are there anew.
    fn store(&self, version: usize) -> Result<(), String> {
        let is_stored = |index: usize| {
            let path = format!("/spec/versions/{index}/storage");
            json!({"op": "replace", "path": path, "value": index == version})
        };
        patch(
            &[],
            &json!([is_stored(VERSION_OLD), is_stored(VERSION_NEW)]),
        )?;
        let names = ["percolator.dev/v1alpha1", "percolator.dev/v1"];
        let (name, other) = (names[version], names[1 - version]);
        let place = format!(
            "percolator.dev/percolatorclusters/{}/kept",
            self.space.name()
        );
        // An object that is written before the API server knows of the change is stored as before.
        for _ in 0..TRIES {
            let get = ["get", OLD, "kept", "-o", "json", "--show-managed-fields"];
            // Who has written which field is known by the version, too: nobody could apply anything when that version is gone.
            let object = self.space.kubectl(&get)?;
            let object = object.replace(&format!("\"{other}\""), &format!("\"{name}\""));
            // Somebody else may have changed it meanwhile.
            let replaced = self.space.replace(&object);
            if replaced.is_ok() && stored(&place)?["apiVersion"] == name {
                let path = "/status/storedVersions";
                let version = ["v1alpha1", "v1"][version];
                let only = json!([{"op": "replace", "path": path, "value": [version]}]);
                return patch(&["--subresource=status"], &only).map(drop);
            }
        }
        Err(format!("it isn't stored as {name} after {TRIES} writes"))
    }
}

impl Drop for BothVersions<'_> {
    fn drop(&mut self) {
        let path = format!("/spec/versions/{VERSION_NEW}");
        let ended = self.store(VERSION_OLD);
        let ended = ended.and_then(|()| patch(&[], &json!([{"op": "remove", "path": path}])));
        match ended {
            Err(error) if std::thread::panicking() => say(&format!("both versions stay: {error}")),
            ended => drop(ended.expect("the chart's definition again")),
        }
    }
}

#[test]
fn an_object_of_v1alpha1_becomes_one_of_v1_and_goes_back() {
    let Some(kube) = Kube::find() else { return };
    kube.install(&[]);
    let space = kube.namespace("versions");
    space.apply(&small("kept", "")).expect("a cluster");
    space.wait_until_up_to_date("kept");
    let incarnations = space.incarnations("kept");
    let spec = |kind: &str| Ok::<_, String>(object(&space, kind)?["spec"].clone());
    let old = spec(OLD).expect("it is there");

    say("it is read and changed as v1, though it was stored before");
    let both = BothVersions::serve(&space);
    wait("v1", || spec(NEW));
    let object = object(&space, NEW).expect("it is served");
    assert_eq!(object["apiVersion"], "percolator.dev/v1");
    assert_eq!(object["spec"], old);
    let retention = r#"{"gc":{"retention":"11m"}}"#;
    space.change_as(NEW, "kept", retention).expect("changed");
    space.wait_until_up_to_date("kept");
    assert_eq!(spec(OLD).expect("served")["gc"]["retention"], "11m");

    say("it is stored as v1");
    both.store(VERSION_NEW).expect("stored");
    let [old, new] = [OLD, NEW].map(|kind| spec(kind).expect("it is served"));
    assert_eq!(old, new);
    kill_operators();
    space.give_team_as(NEW, "kept", "stored");

    say("and as v1alpha1 again, without v1");
    drop(both);
    let versions = definition().expect("the definition")["spec"]["versions"].take();
    let names: Vec<_> = versions
        .as_array()
        .into_iter()
        .flatten()
        .map(|it| &it["name"])
        .collect();
    assert_eq!(names, ["v1alpha1"]);
    space.give_team_as(OLD, "kept", "back");
    space.wait_until_up_to_date("kept");
    assert_eq!(spec(OLD).expect("it is there")["gc"]["retention"], "11m");
    assert_eq!(space.incarnations("kept"), incarnations, "nobody restarts");
}
