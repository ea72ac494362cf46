package egress

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestNameservers(t *testing.T) {
	text := "# nameserver 9.9.9.9\nsearch example\nnameserver 127.0.0.53\n  nameserver\tfd00::1 \nnameserver\nnameserver host\n"
	if got := nameservers([]byte(text)); !slices.Equal(got, []string{"127.0.0.53:53", "[fd00::1]:53"}) {
		t.Errorf("got %q", got)
	}
}

func FuzzNameservers(f *testing.F) {
	f.Add([]byte("nameserver 1.2.3.4\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, server := range nameservers(text) {
			if _, err := net.ResolveUDPAddr("udp", server); err != nil {
				t.Errorf("%q: %v", server, err)
			}
		}
	})
}

// TestNobodyAnswers wants an answer that says so, and not silence.
func TestNobodyAnswers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	e := &Egress{cfg: Config{ResolvConf: file}}
	query := append([]byte{0xab, 0xcd, 0x01, 0x00, 0, 1, 0, 0, 0, 0, 0, 0}, "\x01a\x00\x00\x01\x00\x01"...)
	answer := e.ask(query)
	if !bytes.Equal(answer[:2], query[:2]) || answer[2]&0x80 == 0 || answer[3]&0x0f != 2 || !bytes.Equal(answer[4:], query[4:]) {
		t.Errorf("the answer is %x", answer)
	}
}
