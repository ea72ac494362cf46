package manifests

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
)

// gatewayDefinitions is the name of a file in Files: see GatewayDefinitions.
const gatewayDefinitions = "gateway/definitions.json.gz"

// GatewayDefinitions returns the CustomResourceDefinitions of the Gateway API, each as
// JSON. They are those of the standard channel of the module sigs.k8s.io/gateway-api, in
// the version of go.mod, without most descriptions, because every server keeps the
// definitions in memory. `make` writes the file with scripts/gatewayapi. Without it, an error
// says so.
func GatewayDefinitions() ([][]byte, error) {
	file, err := Files.Open(gatewayDefinitions)
	if err != nil {
		return nil, fmt.Errorf("open definitions of the Gateway API: %w: this kedge was built without them: build it with `make`", err)
	}
	defer file.Close()
	unpacked, err := gzip.NewReader(file)
	if err != nil {
		return nil, fmt.Errorf("unpack definitions of the Gateway API: %w", err)
	}
	text, err := io.ReadAll(unpacked)
	if err != nil {
		return nil, fmt.Errorf("unpack definitions of the Gateway API: %w", err)
	}
	return bytes.Split(bytes.TrimSpace(text), []byte("\n")), nil
}
