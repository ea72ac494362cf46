package gateways

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// TestListening writes ports and reads them again.
func TestListening(t *testing.T) {
	for _, test := range []struct {
		ports []Port
		want  string
	}{
		{nil, ""},
		{[]Port{{30443, routing.TCP}, {8080, routing.TCP}, {30443, routing.UDP}, {8080, routing.TCP}}, "8080/tcp,30443/tcp,30443/udp"},
	} {
		got := FormatListening(test.ports)
		if got != test.want {
			t.Errorf("%v is %q, want %q", test.ports, got, test.want)
		}
		read, err := ParseListening(got)
		if err != nil {
			t.Error(err)
		}
		for _, port := range test.ports {
			if !read[port] {
				t.Errorf("%q has not %s", got, port)
			}
		}
		if again := FormatListening(slices.Collect(maps.Keys(read))); again != got {
			t.Errorf("%q is %q when it is written again", got, again)
		}
	}
	for _, value := range []string{"x", "80", "80/", "80/sctp", "0/tcp", "65536/tcp", "-1/tcp", "+80/tcp", "080/tcp", "80/tcp,", ",", " 80/tcp", "80/TCP", strings.Repeat("80/tcp,", maxListening)} {
		if ports, err := ParseListening(value); err == nil || ports != nil {
			t.Errorf("%.20q is %v", value, ports)
		}
	}
}
