//! The crate vnotify as a writer and reader. Each line of JSON on stdin is answered by one line.
//!
//! The first line is the place: endpoint, region, id, secret, bucket, prefix, shards. Further lines are
//! `{"put": KEY, "body": TEXT}`, answered by null; `{"get": KEY}` and `{"try_get": KEY}`, answered by the body, or null.

use std::time::Duration;

use aws_sdk_s3::config::{BehaviorVersion, Credentials, Region};
use serde_json::{json, Value};
use tokio::io::{AsyncBufReadExt, BufReader};
use vnotify::{Config, VnotifyCache};

fn text<'a>(from: &'a Value, name: &str) -> &'a str {
    from[name].as_str().unwrap_or_default()
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let place: Value = serde_json::from_str(&lines.next_line().await?.unwrap_or_default())?;
    let keys = Credentials::new(text(&place, "id"), text(&place, "secret"), None, None, "given");
    let client = aws_sdk_s3::Client::from_conf(
        aws_sdk_s3::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .endpoint_url(text(&place, "endpoint"))
            .region(Region::new(text(&place, "region").to_owned()))
            .credentials_provider(keys)
            .force_path_style(true)
            .build(),
    );
    let bucket = text(&place, "bucket").to_owned();
    let mut config = Config::with_bucket_and_prefix(bucket, text(&place, "prefix").to_owned());
    config.shards = place["shards"].as_u64().unwrap_or(1000) as u32;
    config.refresh_interval = Duration::from_millis(100);
    let cache = VnotifyCache::new(client, config);
    println!("null");
    while let Some(line) = lines.next_line().await? {
        let asked: Value = serde_json::from_str(&line)?;
        let found = if let Some(key) = asked["put"].as_str() {
            let body = text(&asked, "body").to_owned().into_bytes();
            cache.put(key, body.into()).await?;
            None
        } else if let Some(key) = asked["get"].as_str() {
            cache.get(key).await?
        } else {
            cache.try_get(text(&asked, "try_get")).await
        };
        println!("{}", json!(found.map(|body| String::from_utf8_lossy(&body).into_owned())));
    }
    Ok(())
}
