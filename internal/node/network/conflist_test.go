package network

import (
	"bytes"
	"encoding/binary"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestConflist(t *testing.T) {
	v4, v6 := netip.MustParsePrefix("10.42.0.0/24"), netip.MustParsePrefix("fd42::/64")
	for name, conf := range map[string]conflist{
		"ipv4":      {PodCIDRs: []netip.Prefix{v4}, MTU: 1450, Nftables: true},
		"ipv6":      {PodCIDRs: []netip.Prefix{v6}, MTU: 1430, Nftables: true},
		"dualstack": {PodCIDRs: []netip.Prefix{v4, v6}, MTU: 1450, Nftables: true},
		"iptables":  {PodCIDRs: []netip.Prefix{v4}, MTU: 1450},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "net.d")
			if err := conf.write(dir); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(filepath.Join(dir, conflistName))
			if err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join("testdata", name+".conflist")
			if *update {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			if entries, _ := os.ReadDir(dir); len(entries) != 1 {
				t.Errorf("the folder has %d files, want the one", len(entries))
			}
		})
	}
}

func TestConflistIsNotWrittenAgain(t *testing.T) {
	dir := t.TempDir()
	conf := conflist{PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/24")}, MTU: 1450}
	inode := func() os.FileInfo {
		t.Helper()
		if err := conf.write(dir); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(filepath.Join(dir, conflistName))
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	first := inode()
	if !os.SameFile(first, inode()) {
		t.Error("an unchanged configuration was written again")
	}
	conf.MTU = 1400
	if os.SameFile(first, inode()) {
		t.Error("a changed configuration was not replaced")
	}
	if err := removeConflist(dir); err != nil {
		t.Fatal(err)
	}
	if err := removeConflist(dir); err != nil {
		t.Errorf("remove a configuration that does not exist: %v", err)
	}
}

// TestConflistIsNoticed watches the folder as containerd does. containerd acts on renames and writes,
// and after a write it could read half a file.
func TestConflistIsNoticed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "net.d")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	watch, err := unix.InotifyInit1(unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(watch)
	if _, err := unix.InotifyAddWatch(watch, dir, unix.IN_MOVED_FROM|unix.IN_MODIFY); err != nil {
		t.Fatal(err)
	}
	if err := (conflist{MTU: 1450}).write(dir); err != nil {
		t.Fatal(err)
	}
	events := make([]byte, 4096)
	n, err := unix.Read(watch, events)
	if err != nil {
		t.Fatalf("a program that watches the folder got no event: %v", err)
	}
	if mask := binary.NativeEndian.Uint32(events[4:]); mask != unix.IN_MOVED_FROM || n > unix.SizeofInotifyEvent+32 {
		t.Errorf("events %x: want one, a rename", events[:n])
	}
}
