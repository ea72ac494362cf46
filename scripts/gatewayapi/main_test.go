package main

import (
	"bytes"
	"testing"

	"github.com/kedge-dev/kedge/manifests"
)

// TestEmbedded wants the embedded definitions to be those of the module.
func TestEmbedded(t *testing.T) {
	want, err := definitions()
	if err != nil {
		t.Fatal(err)
	}
	got, err := manifests.GatewayDefinitions()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(bytes.Join(got, []byte("\n")), bytes.TrimSpace(want)) {
		t.Errorf("the embedded definitions of the Gateway API are not those of %s in go.mod: run go run ./scripts/gatewayapi >manifests/gateway/definitions.json.gz", module)
	}
}

func TestSentence(t *testing.T) {
	for text, want := range map[string]string{
		"Name is the name. It must be\nshort.":         "Name is the name.",
		"Kind is kind of\nthe referent.":               "Kind is kind of the referent.",
		"Rules are:\n\n* one":                          "Rules are:",
		"See example.com for more. <gateway:internal>": "See example.com for more.",
		"": "",
	} {
		if got := sentence(text); got != want {
			t.Errorf("%q: got %q", text, got)
		}
	}
}
