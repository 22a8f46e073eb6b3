//! Generates the messages and services from `proto/`, without a system `protoc`.

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
        .compile_fds(descriptors)?;
    Ok(())
}
