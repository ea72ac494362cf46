package snapshot

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
)

// largestFuzzed limits what a target writes to the disk, in bytes.
const largestFuzzed = 1 << 20

// ours is the version of the kedge that reads.
const ours = "v1.36.5+kedge.3"

func fuzzedManifest(content []byte) *Manifest {
	sum := sha256.Sum256(content)
	return &Manifest{
		Format: formatVersion, Kedge: "v1.36.3+kedge.1", Datastore: "sqlite", Name: OnDemand, Node: "pi",
		Time: time.Unix(1_800_000_000, 0).UTC(), Revision: 42, Size: int64(len(content)), SHA256: hex.EncodeToString(sum[:]),
		Secrets: map[string]string{"tls/server-ca.crt": "00"}, Sealed: join.Sealed{Salt: []byte("salt")},
	}
}

// unpacked reads a file as a restore does. The file is refused, or the result is
// what was saved.
func unpacked(t *testing.T, file []byte) {
	folder := t.TempDir()
	path, target := filepath.Join(folder, "a.zst"), filepath.Join(folder, "content")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := open(path)
	if err != nil {
		return
	}
	defer r.close()
	if r.acceptable(ours, "sqlite") != nil || r.Size > largestFuzzed {
		return
	}
	err = r.extract(target)
	content, readErr := os.ReadFile(target)
	if int64(len(content)) > max(r.Size, 0)+1 {
		t.Errorf("%d bytes are written, and the manifest has %d", len(content), r.Size)
	}
	if err != nil {
		if !errors.Is(err, errDamaged) {
			t.Errorf("got error %v, want one that is errDamaged", err)
		}
		return
	}
	sum := sha256.Sum256(content)
	if readErr != nil || int64(len(content)) != r.Size || hex.EncodeToString(sum[:]) != r.SHA256 {
		t.Errorf("got %d bytes, %v, want the %d bytes whose hash is in the manifest", len(content), readErr, r.Size)
	}
}

// FuzzSnapshot reads arbitrary bytes as a snapshot.
func FuzzSnapshot(f *testing.F) {
	for _, content := range []string{"", "all objects, all objects"} {
		var file bytes.Buffer
		if err := encode(&file, strings.NewReader(content), fuzzedManifest([]byte(content))); err != nil {
			f.Fatal(err)
		}
		f.Add(file.Bytes())
		f.Add(file.Bytes()[:file.Len()-5])
		f.Add(append(slices.Clone(file.Bytes()), 0))
	}
	f.Add([]byte{})
	f.Fuzz(unpacked)
}

// FuzzManifest reads a snapshot whose manifest has arbitrary bytes and a correct
// checksum.
func FuzzManifest(f *testing.F) {
	content := []byte("all objects, all objects")
	encoder, err := zstd.NewWriter(nil)
	if err != nil {
		f.Fatal(err)
	}
	compressed := encoder.EncodeAll(content, nil)
	for _, change := range []func(*Manifest){
		func(*Manifest) {},
		func(m *Manifest) { m.Size = -1 },
		func(m *Manifest) { m.Size = 1<<63 - 1 },
		func(m *Manifest) { m.Kedge = "v1.36" },
		func(m *Manifest) { m.Format = 2 },
		func(m *Manifest) { m.Datastore = "../etcd" },
	} {
		m := fuzzedManifest(content)
		change(m)
		text, err := json.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text, compressed)
		f.Add(text, append(slices.Clone(compressed), compressed...))
	}
	f.Add([]byte(`{"format":1,"secrets":{"a":null},"sealed":[]}`), compressed)
	// This frame needs a window of 512 MB.
	f.Add([]byte(`{"format":1,"kedge":"v1.36.0+kedge.1","datastore":"sqlite","size":1}`), []byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x98, 0x09, 0x00, 0x00, 'x'})
	f.Fuzz(func(t *testing.T, manifest, compressed []byte) {
		sum := sha256.Sum256(manifest)
		file := binary.LittleEndian.AppendUint32(nil, skippableMagic)
		file = binary.LittleEndian.AppendUint32(file, uint32(len(signature)+sumLength+len(manifest)))
		file = append(file, signature+hex.EncodeToString(sum[:])+"\n"...)
		unpacked(t, append(append(file, manifest...), compressed...))
	})
}

// FuzzUnpack restores secrets of arbitrary names. Nothing may be written outside of
// the folder.
func FuzzUnpack(f *testing.F) {
	dir := datadir.Dir(f.TempDir())
	if err := errors.Join(os.MkdirAll(dir.ServerTLS(), 0o700), os.MkdirAll(dir.AgentTLS(), 0o700)); err != nil {
		f.Fatal(err)
	}
	server, err := pki.EnsureServer(pki.ServerOptions{Dir: dir, NodeName: "pi", ClusterDomain: "cluster.local"})
	if err != nil {
		f.Fatal(err)
	}
	f.Add("tls/server-ca.key", []byte("key"), "tls/etcd/peer-ca.crt", []byte("x"))
	f.Add("tls/../token", []byte("x"), "tls//etc/passwd", []byte("x"))
	f.Add("tls/../../a", []byte("x"), "tls/a\x00b", []byte("x"))
	f.Add("tls/a", []byte("x"), "tls/a/b", []byte("x"))
	f.Add("tls/", []byte("x"), "tls/.", []byte("x"))
	f.Add("token", []byte("x"), encryptionName, []byte("x"))
	f.Fuzz(func(t *testing.T, one string, first []byte, other string, second []byte) {
		root := t.TempDir()
		folder := filepath.Join(root, "restoring")
		if err := os.Mkdir(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		sent := secrets{tlsPrefix + "server-ca.crt": server.ServerCA(), one: first, other: second}
		unpackErr := sent.unpack(folder, "secret")
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			name, err := filepath.Rel(folder, path)
			if err != nil || name != "token" && !strings.HasPrefix(name, "tls/") {
				t.Errorf("%q and %q are written to %s", one, other, path)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if unpackErr != nil {
			return
		}
		for name, content := range sent {
			if file, ok := strings.CutPrefix(name, tlsPrefix); ok {
				if got, err := os.ReadFile(filepath.Join(folder, "tls", file)); err != nil || !slices.Equal(got, content) {
					t.Errorf("%q is %q, and not %q: %v", name, got, content, err)
				}
			}
		}
	})
}

// FuzzName lists arbitrary names in a folder of snapshots, or in S3. A file that
// counts as a snapshot must have a valid name and be in the folder.
func FuzzName(f *testing.F) {
	f.Add("on-demand-pi-1800000000.zst", "pi")
	f.Add("a-b-pi-007.zst", "b-pi")
	f.Add("../a-pi-1.zst", "pi")
	f.Add("-pi-1.zst", "pi")
	f.Add("a-pi-999999999999.zst", "pi")
	f.Add("a\n-pi-1.zst", "pi")
	f.Fuzz(func(t *testing.T, file, node string) {
		name, at, ok := parseName(file, node)
		if !ok {
			return
		}
		if checkName(name) != nil || strings.Contains(strings.TrimSuffix(file, suffix)[:len(name)], "/") || at.Unix() < 0 {
			t.Errorf("%q of node %q is the snapshot %q of %s", file, node, name, at)
		}
		again, then, ok := parseName(fileName(name, node, at), node)
		if !ok || again != name || !then.Equal(at) {
			t.Errorf("%q of node %q is %q of %s, and then %q of %s", file, node, name, at, again, then)
		}
	})
}
