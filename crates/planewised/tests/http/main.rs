//! The daemon's API over its real socket, with a core that stands in: what it answers, what it
//! refuses, and that nothing that comes in stops it.

#![expect(clippy::expect_used, reason = "a test that cannot go on says why and ends")]

mod standin;

use std::io::{BufRead, BufReader, Read, Write};
use std::time::{Duration, Instant};

use planewised::daemon::request::{Event, Request};
use pw_alloc::model::Stance;
use pw_alloc::settings::PolicyKind;
use standin::{Answered, StandIn, connect, encoded, exchange, say_all, status};

#[test]
fn everything_that_can_be_read_is_read() {
    let daemon = StandIn::start();
    let told = daemon.get("/status").json();
    assert_eq!(told["guests"][0]["vf"], "pf0/0");
    assert_eq!(told["guests"][1]["rate"]["source"], "unsupported");
    assert_eq!(told["policy"], "benefit");
    for known in status().guests {
        let one = daemon.get(&format!("/guests/{}", encoded(&known.id)));
        assert_eq!(one.json()["id"], known.id.as_str(), "{one:?}");
    }
    assert_eq!(daemon.get("/plan").json()["performed"], false);
    let metrics = daemon.get("/metrics");
    assert!(
        metrics.head.contains("application/openmetrics-text; version=1.0.0"),
        "{}",
        metrics.head
    );
    assert!(metrics.body.contains(
        "planewise_guest_packets_per_second{guest=\"web\",source=\"host-side\"} 1000.0\n"
    ));
    assert!(
        metrics.body.contains("{guest=\"a \\\"b\\\"\\\\\\n<i>ü/%2f\"} 0.0\n"),
        "{}",
        metrics.body
    );
    assert!(metrics.body.ends_with("# EOF\n"));
    let page = daemon.get("/");
    assert!(page.head.contains("text/html") && page.head.contains("default-src 'none'"));
    assert!(page.body.contains("<title>planewised</title>") && !page.body.contains("NONCE"));
    assert_eq!(daemon.send("HEAD", "/status", b"").code, 200);
}

#[test]
fn every_order_reaches_the_core_and_names_its_caller() {
    let daemon = StandIn::start();
    let web = || "web".into();
    let orders: [(&str, &str, &str, Request); 9] = [
        (
            "PUT",
            "/guests/web/stance",
            r#"{"stance":"pinned"}"#,
            Request::Stance { guest: web(), stance: Stance::Pinned },
        ),
        (
            "PUT",
            "/guests/web/stance",
            r#"{"stance":"excluded"}"#,
            Request::Stance { guest: web(), stance: Stance::Excluded },
        ),
        (
            "PUT",
            "/guests/w%65b/stance",
            r#"{"stance":"free"}"#,
            Request::Stance { guest: web(), stance: Stance::Free },
        ),
        ("DELETE", "/guests/web/mark", "", Request::Unmark { guest: web() }),
        ("PUT", "/policy", r#"{"policy":"fair"}"#, Request::Policy { policy: PolicyKind::Fair }),
        ("POST", "/rebalance", "", Request::Rebalance),
        ("PUT", "/drain", r#"{"on":true}"#, Request::Drain { on: true }),
        ("PUT", "/drain", r#"{"on":false}"#, Request::Drain { on: false }),
        ("POST", "/reload", "", Request::Reload),
    ];
    for (method, path, body, request) in orders {
        let answered = daemon.send(method, path, body.as_bytes());
        assert_eq!(answered.code, 200, "{answered:?}");
        let asked = std::mem::take(&mut *daemon.asked.lock().expect("a list"));
        let caller = format!("uid {}, pid {}", nix::unistd::geteuid(), std::process::id());
        assert_eq!(asked, [(request, caller)]);
    }
}

#[test]
fn what_makes_no_sense_is_refused_in_a_sentence_and_never_reaches_the_core() {
    let daemon = StandIn::start();
    let stance = "/guests/web/stance";
    daemon.get("/nosuch").refused(404, "nothing at this path");
    daemon.get("/guests/nobody").refused(404, "there is no guest nobody");
    daemon.get("/guests/%ff").refused(400, "is no text");
    daemon.send("PATCH", "/policy", b"").refused(405, "no such method");
    daemon.send("PUT", stance, b"").refused(400, "the body is not understood");
    daemon.send("PUT", stance, br#"{"stance":"pinned","x":1}"#).refused(400, "unknown field `x`");
    daemon.send("PUT", "/policy", br#"{"policy":"best"}"#).refused(400, "unknown variant `best`");
    daemon.send("PUT", stance, &[b'x'; 5000]).refused(413, "larger than 4096 bytes");
    daemon.get("/events?status=maybe").refused(400, "query is not understood");
    let chunked = format!(
        "PUT {stance} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n\
         1400\r\n{}\r\n0\r\n\r\n",
        "x".repeat(0x1400)
    );
    Answered::parse(&exchange(&daemon.socket(), chunked.as_bytes())).refused(413, "larger than");
    let foreign = "POST /rebalance HTTP/1.1\r\nhost: planewised\r\norigin: https://evil.example\r\n\
                   connection: close\r\ncontent-length: 0\r\n\r\n";
    Answered::parse(&exchange(&daemon.socket(), foreign.as_bytes()))
        .refused(403, "another site's page");
    let long = format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "x".repeat(40_000));
    assert_eq!(Answered::parse(&exchange(&daemon.socket(), long.as_bytes())).code, 431);
    assert_eq!(daemon.requests(), []);
    daemon.send("PUT", "/guests/nobody/stance", br#"{"stance":"free"}"#).refused(404, "nobody");
}

#[test]
fn no_bytes_on_the_socket_stop_the_daemon() {
    let daemon = StandIn::start();
    let socket = daemon.socket();
    pw_cases::check!().with_type::<Vec<u8>>().for_each(|bytes| {
        say_all(&socket, bytes);
    });
    assert_eq!(daemon.get("/status").code, 200);
}

#[test]
fn no_method_path_header_or_body_stops_the_daemon_or_goes_without_an_answer() {
    const METHODS: [&str; 8] = ["GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "OPTIONS", "X"];
    const PATHS: [&str; 8] =
        ["/status", "/guests/", "/guests/web/", "/policy", "/drain", "/metrics", "/plan", "/"];
    let daemon = StandIn::start();
    let socket = daemon.socket();
    type Asked = ((u8, u8), String, String, Vec<u8>, bool);
    pw_cases::check!().with_type::<Asked>().for_each(
        |((method, path), tail, header, body, json)| {
            let method = METHODS[usize::from(*method) % METHODS.len()];
            let path = PATHS[usize::from(*path) % PATHS.len()];
            let in_line =
                |text: &str| text.replace(|letter: char| letter.is_control() || letter == ' ', "%");
            let body = match json {
                true => format!("{{\"stance\":{:?}}}", String::from_utf8_lossy(body)).into_bytes(),
                false => body.clone(),
            };
            let mut request = format!(
                "{method} {path}{} HTTP/1.1\r\nhost: x\r\nx-header: {}\r\nconnection: close\r\n\
             content-length: {}\r\n\r\n",
                in_line(tail),
                in_line(header),
                body.len()
            )
            .into_bytes();
            request.extend_from_slice(&body);
            let answer = exchange(&socket, &request);
            assert!(answer.starts_with(b"HTTP/1.1 "), "{}", String::from_utf8_lossy(&request));
            assert!(!answer.starts_with(b"HTTP/1.1 500"), "{}", String::from_utf8_lossy(&request));
        },
    );
    assert_eq!(daemon.get("/status").code, 200);
}

#[test]
fn a_crowd_of_silent_connections_is_bounded_and_goes_away() {
    let daemon = StandIn::start();
    let mut crowd: Vec<_> = (0..64).map(|_| connect(&daemon.socket())).collect();
    daemon.get("/status").refused(503, "64 connections to the daemon are open");
    crowd.pop();
    let until = Instant::now() + Duration::from_secs(60);
    while daemon.get("/status").code != 200 {
        assert!(Instant::now() < until, "the place that became free is not given again");
        std::thread::sleep(Duration::from_millis(20));
    }
    // Whoever says nothing is sent away by itself.
    let mut said = Vec::new();
    crowd[0].read_to_end(&mut said).expect("closed by the daemon");
}

#[test]
fn events_are_told_in_order_and_a_slow_reader_learns_what_it_missed() {
    const TOLD: u64 = 30_000;
    let daemon = StandIn::start();
    let mut stream = connect(&daemon.socket());
    stream.write_all(b"GET /events?status=true HTTP/1.1\r\nhost: x\r\n\r\n").expect("asked");
    let mut lines = BufReader::new(stream).lines().map(|line| line.expect("a line"));
    assert!(lines.any(|line| line == "event: status"));
    for moves in 0..TOLD {
        let told = daemon.events.send(Event::Decided { moves, deferred: 0, duration_ms: 0.5 });
        told.expect("somebody listens");
    }
    let (mut next, mut missed) = (0, 0);
    while next + missed < TOLD {
        let line = lines.next().expect("the stream goes on");
        let Some(data) = line.strip_prefix("data: ") else { continue };
        let Ok(data) = serde_json::from_str::<serde_json::Value>(data) else { continue };
        if let Some(count) = data["missed"].as_u64() {
            missed += count;
        } else if let Some(moves) = data["moves"].as_u64() {
            assert_eq!(moves, next + missed, "in order");
            next += 1;
        }
    }
    assert!(missed > 0, "30000 events in a burst are more than are kept");
}

#[test]
fn an_end_is_told_to_those_who_listen_and_takes_the_socket_away() {
    let mut daemon = StandIn::start();
    let mut stream = connect(&daemon.socket());
    stream.write_all(b"GET /events HTTP/1.1\r\nhost: x\r\n\r\n").expect("asked");
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    while !line.contains("listening") {
        line.clear();
        reader.read_line(&mut line).expect("a line");
    }
    let last = Event::Stopping { what: "2 guests keep their VFs".into() };
    daemon.events.send(last).expect("somebody listens");
    drop(daemon.http.take());
    assert!(!daemon.socket().exists());
    let mut rest = String::new();
    reader.read_to_string(&mut rest).expect("the rest");
    assert!(rest.contains("2 guests keep their VFs"), "{rest}");
    assert!(rest.ends_with("0\r\n\r\n"), "the stream is ended, not torn: {rest}");
}

#[test]
fn every_operation_of_the_description_is_served() {
    let daemon = StandIn::start();
    let description = daemon.get("/openapi.json").json();
    let paths = description["paths"].as_object().expect("paths");
    let mut operations = 0;
    for (path, methods) in paths {
        for method in methods.as_object().expect("methods").keys() {
            if path == "/events" {
                operations += 1;
                continue; // a stream without an end, tested above
            }
            let answered =
                daemon.send(&method.to_uppercase(), &path.replace("{guest}", "web"), b"{}");
            assert!(![404, 405].contains(&answered.code), "{method} {path}: {answered:?}");
            operations += 1;
        }
    }
    let routes = include_str!("../../src/http/api.rs").matches(".route(\"").count();
    assert_eq!(operations, routes, "a path is served and not described");
}
