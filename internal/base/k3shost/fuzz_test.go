package k3shost

import (
	"strings"
	"testing"
)

// FuzzUnit reads anything as a unit of k3s's service. A flag has a name and a value.
func FuzzUnit(f *testing.F) {
	for _, text := range []string{
		"[Service]\nEnvironment='A=b'\nExecStart=/usr/local/bin/k3s \\\n    server \\\n\t'--disable' \\\n\t'traefik' \\\n",
		"command_args=\"agent --node-label a >>/var/log/k3s.log 2>&1\"\n", "ExecStart=k3s server -t x --config='a b' --docker -v 2 --", "ExecStart='",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s := &service{unit: "unit"}
		s.read(text)
		for i, flag := range s.flags {
			if len(flag.Values) == 0 || strings.HasPrefix(flag.Name, "-") {
				t.Errorf("flag %+v", flag)
			}
			for _, other := range s.flags[:i] {
				if other.Name == flag.Name {
					t.Errorf("%s is there twice", flag.Name)
				}
			}
		}
	})
}
