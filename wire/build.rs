//! Generates the messages and services from `proto/`, without a system `protoc`.

use prost::Message as _;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = [
        "oracle.proto",
        "tablet.proto",
        "master.proto",
        "promises.proto",
        "trace.proto",
    ];
    let descriptors = protox::compile(files, ["proto"])?;
    tonic_prost_build::configure()
        .bytes(".")
        // The usual answer has none, and needn't be as large as the one that has.
        .boxed(".percolator.v1.GetOneResponse.locked")
        // Few requests are traced.
        .boxed(".percolator.v1.Request.trace")
        // Few scans ask for changes.
        .boxed(".percolator.v1.ScanRequest.changed")
        .compile_fds(descriptors)?;
    // The proxy's clients may ask it for its own description.
    let proxy = protox::compile(["proxy.proto"], ["proto"])?;
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("proxy.bin"), proxy.encode_to_vec())?;
    tonic_prost_build::configure()
        .bytes(".")
        .compile_fds(proxy)?;
    Ok(())
}
