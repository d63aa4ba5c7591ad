//! Devices of this node that other software allocates to pods: device plugins', from the kubelet's
//! checkpoint, and DRA drivers', from their ResourceSlices. Pure but for one file.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

use pw_sriov::address::PciAddress;
use serde::Deserialize;
use serde_json::Value;

/// Devices that other software allocates, with the name of the plugin or driver.
pub type HandedOut = BTreeMap<PciAddress, String>;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Checkpoint {
    data: Data,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Data {
    #[serde(default)]
    registered_devices: Option<BTreeMap<String, Vec<String>>>,
}

/// Devices that plugins have registered with the kubelet, from its checkpoint. Identifiers that are not PCI
/// addresses are left out: SR-IOV plugins use these.
pub fn registered(path: &Path) -> Result<HandedOut, String> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        // A kubelet without plugins writes none.
        Err(error)
            if error.kind() == ErrorKind::NotFound && path.parent().is_some_and(Path::is_dir) =>
        {
            return Ok(HandedOut::new());
        }
        Err(error) => {
            return Err(format!("the kubelet's record {} cannot be read: {error}", path.display()));
        }
    };
    let checkpoint: Checkpoint = serde_json::from_slice(&text).map_err(|error| {
        format!("the kubelet's record {} makes no sense: {error}", path.display())
    })?;
    let mut handed_out = HandedOut::new();
    for (resource, devices) in checkpoint.data.registered_devices.unwrap_or_default() {
        let addresses = devices.iter().filter_map(|device| device.parse::<PciAddress>().ok());
        handed_out
            .extend(addresses.map(|address| (address, format!("the device plugin of {resource}"))));
    }
    Ok(handed_out)
}

/// Devices in another driver's ResourceSlice that have a PCI address as attribute.
pub fn published(slice: &Value) -> HandedOut {
    let driver = slice.pointer("/spec/driver").and_then(Value::as_str).unwrap_or("without a name");
    let devices = slice.pointer("/spec/devices").and_then(Value::as_array).into_iter().flatten();
    let attributes = devices.filter_map(|device| {
        // Before resource.k8s.io/v1 they were one level deeper.
        device.get("attributes").or_else(|| device.pointer("/basic/attributes"))?.as_object()
    });
    attributes
        .flat_map(|attributes| attributes.values())
        .filter_map(|value| value.get("string")?.as_str()?.parse::<PciAddress>().ok())
        .map(|address| (address, format!("the DRA driver {driver}")))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_device_plugins_registered_is_read_from_the_kubelets_record() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("kubelet_internal_checkpoint");
        assert_eq!(registered(&path), Ok(HandedOut::new()));
        let record = json!({"Data": {"PodDeviceEntries": null, "RegisteredDevices": {
            "intel.com/sriov": ["0000:3b:02.1", "0000:3b:02.2"], "example.com/gpu": ["GPU-1"]}},
            "Checksum": 1});
        std::fs::write(&path, record.to_string()).expect("written");
        let handed_out = registered(&path).expect("read");
        assert_eq!(handed_out.len(), 2);
        let address = "0000:3b:02.1".parse().expect("an address");
        assert_eq!(handed_out[&address], "the device plugin of intel.com/sriov");
    }

    #[test]
    fn a_record_that_cannot_be_read_is_not_an_empty_one() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("record");
        std::fs::write(&path, "{").expect("written");
        assert!(registered(&path).is_err_and(|why| why.contains("makes no sense")));
        assert!(registered(&directory.path().join("nowhere/record")).is_err());
    }

    #[test]
    fn devices_of_slices_are_those_with_a_pci_address() {
        let slice = json!({"spec": {"driver": "dra.example.com", "devices": [
            {"name": "vf0", "attributes": {
                "resource.kubernetes.io/pciBusID": {"string": "0000:3b:02.1"}, "index": {"int": 1}}},
            {"name": "gpu", "attributes": {"model": {"string": "LATEST"}}},
            {"name": "old", "basic": {"attributes": {"address": {"string": "0000:3b:02.2"}}}}]}});
        let published = published(&slice);
        assert_eq!(published.len(), 2);
        assert!(published.values().all(|by| by == "the DRA driver dra.example.com"));
        assert_eq!(super::published(&json!({})), HandedOut::new());
    }
}
