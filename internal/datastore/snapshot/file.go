package snapshot

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	utilversion "k8s.io/apimachinery/pkg/util/version"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/cluster/join"
)

// formatVersion grows when a kedge before could not read a snapshot any more.
const formatVersion = 1

// A snapshot is a file of zstd, so `zstd -d` makes of it what the datastore
// itself saved. Its first frame is one that zstd skips (RFC 8878, 3.1.2): the
// signature, the SHA-256 of the manifest in hexadecimal, a newline, and the
// manifest in JSON.
const (
	skippableMagic = 0x184D2A50
	signature      = "kedge snapshot\n"
	sumLength      = 2*sha256.Size + 1
	// maxManifest is in bytes; secrets are most of it.
	maxManifest = 4 << 20
	// window is how much of the content the compression looks back at, in bytes: a
	// small machine has room for it. A file that wants more than maxWindow is
	// refused. The format allows 512 MB.
	window    = 1 << 20
	maxWindow = 8 << 20
)

// Manifest is what a snapshot says of itself.
type Manifest struct {
	Format int `json:"format"`
	// Kedge and Kubernetes are the versions that saved it.
	Kedge      string `json:"kedge"`
	Kubernetes string `json:"kubernetes"`
	// Datastore is the kind of its content (datastore.Snapshotter).
	Datastore string    `json:"datastore"`
	Name      string    `json:"name"`
	Node      string    `json:"node"`
	Time      time.Time `json:"time"`
	Revision  int64     `json:"revision"`
	// Size and SHA256 are of the content, before compression.
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
	// Secrets has the SHA-256 of each file that is in Sealed, by name.
	Secrets map[string]string `json:"secrets"`
	Sealed  join.Sealed       `json:"sealed"`
}

// errDamaged says that a file is not as it was saved.
var errDamaged = errors.New("the snapshot is damaged")

// damaged says what a user can do about a file that is not as it was saved.
func damaged(path, what string) error {
	return fmt.Errorf("%w: %s %s: take another one (`kedge snapshot list`), or a copy of this one from elsewhere", errDamaged, path, what)
}

// write makes the snapshot at path of the manifest and the file content, whose
// size and sum it fills in. It is there whole or not at all.
func write(path, content string, m *Manifest) error {
	source, err := os.Open(content)
	if err != nil {
		return err
	}
	defer source.Close()
	sum := sha256.New()
	if m.Size, err = io.Copy(sum, source); err != nil {
		return err
	}
	m.SHA256 = hex.EncodeToString(sum.Sum(nil))
	if _, err := source.Seek(0, io.SeekStart); err != nil {
		return err
	}
	temporary := temporaryFile(path)
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	target, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer os.Remove(temporary)
	err = encode(target, source, m)
	if err == nil {
		err = target.Sync()
	}
	if err = errors.Join(err, target.Close()); err != nil {
		return err
	}
	return datadir.Replace(temporary, path, path+".old") // there is no old one: names have the time in them
}

// temporaryFile is what path is while it is being written. It is not listed.
func temporaryFile(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+temporarySuffix)
}

func encode(w io.Writer, content io.Reader, m *Manifest) error {
	text, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode manifest: %w", err)
	}
	sum := sha256.Sum256(text)
	frame := binary.LittleEndian.AppendUint32(nil, skippableMagic)
	frame = binary.LittleEndian.AppendUint32(frame, uint32(len(signature)+sumLength+len(text)))
	frame = append(frame, signature+hex.EncodeToString(sum[:])+"\n"...)
	if _, err := w.Write(append(frame, text...)); err != nil {
		return err
	}
	encoder, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true), zstd.WithWindowSize(window))
	if err != nil {
		return fmt.Errorf("compress: %w", err)
	}
	_, err = io.Copy(encoder, content)
	return errors.Join(err, encoder.Close())
}

// reader is an opened snapshot, of which the manifest has been read.
type reader struct {
	Manifest
	path string
	file *os.File
	rest *bufio.Reader
}

// open opens the snapshot at path and reads its manifest. It must be closed.
func open(path string) (*reader, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open snapshot: %w", err)
	}
	r := &reader{path: path, file: file, rest: bufio.NewReader(file)}
	if err := r.readManifest(); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return r, nil
}

func (r *reader) close() error { return r.file.Close() }

func (r *reader) readManifest() error {
	head := make([]byte, 8+len(signature)+sumLength)
	if n, err := io.ReadFull(r.rest, head); err != nil {
		if !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read snapshot: %w", err)
		}
		return damaged(r.path, fmt.Sprintf("has no more than %d bytes", n))
	}
	length := int(binary.LittleEndian.Uint32(head[4:])) - len(signature) - sumLength
	sum := strings.TrimSuffix(string(head[8+len(signature):]), "\n")
	if binary.LittleEndian.Uint32(head) != skippableMagic || !bytes.HasPrefix(head[8:], []byte(signature)) {
		return fmt.Errorf("%s is not a snapshot of kedge", r.path)
	}
	if length < 0 || length > maxManifest {
		return damaged(r.path, "has a manifest of an impossible length")
	}
	text := make([]byte, length)
	if _, err := io.ReadFull(r.rest, text); err != nil {
		return damaged(r.path, "is cut off")
	}
	if got := sha256.Sum256(text); hex.EncodeToString(got[:]) != sum {
		return damaged(r.path, "has a manifest that was changed: its checksum is another")
	}
	// Of a later format no more than this is known.
	if err := json.Unmarshal(text, &struct {
		Format *int    `json:"format"`
		Kedge  *string `json:"kedge"`
	}{&r.Format, &r.Kedge}); err != nil {
		return damaged(r.path, "has a manifest that cannot be read: "+err.Error())
	}
	if r.Format > formatVersion {
		return nil
	}
	if err := json.Unmarshal(text, &r.Manifest); err != nil {
		return damaged(r.path, "has a manifest that cannot be read: "+err.Error())
	}
	return nil
}

// settings say how a server gets a datastore of a kind.
var settings = map[string]string{
	"etcd": " (cluster-init)",
	"sql":  " (datastore-endpoint of PostgreSQL or MySQL)",
}

// acceptable returns an error if a kedge of version ours, with a datastore of
// that kind, cannot restore the snapshot.
func (r *reader) acceptable(ours, kind string) error {
	newer := fmt.Errorf("%s was saved by kedge %s, which is newer than this one, %s: restore it with %[2]s or later", r.path, r.Kedge, ours)
	if r.Format > formatVersion {
		return newer
	}
	theirs, err := utilversion.ParseSemantic(r.Kedge)
	if err != nil {
		return damaged(r.path, "has no version: "+err.Error())
	}
	own, err := utilversion.ParseSemantic(ours)
	if err != nil {
		return fmt.Errorf("read kedge's own version: %w", err)
	}
	// A newer Kubernetes may have stored objects in versions that this one cannot
	// read; patches do not.
	if theirs.Major() > own.Major() || theirs.Major() == own.Major() && theirs.Minor() > own.Minor() {
		return newer
	}
	if r.Datastore != kind {
		return fmt.Errorf("%s is of a datastore of the kind %s, and this server's is %s: restore it on a server with a datastore of its kind%s", r.path, r.Datastore, kind, settings[r.Datastore])
	}
	return nil
}

// extract writes the content to target, checked.
func (r *reader) extract(target string) (err error) {
	decoder, err := zstd.NewReader(r.rest, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return fmt.Errorf("read snapshot: %w", err)
	}
	defer decoder.Close()
	file, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("unpack snapshot: %w", datadir.Explain(err))
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	sum := sha256.New()
	// One byte too many is enough to know.
	size, err := io.Copy(io.MultiWriter(file, sum), io.LimitReader(decoder, r.Size+1))
	var pathError *fs.PathError
	switch {
	case errors.As(err, &pathError):
		return fmt.Errorf("unpack snapshot: %w", datadir.Explain(err))
	case errors.Is(err, io.ErrUnexpectedEOF) || err == nil && size < r.Size:
		return damaged(r.path, "is cut off")
	case err != nil:
		return damaged(r.path, "cannot be decompressed: "+err.Error())
	case size > r.Size || hex.EncodeToString(sum.Sum(nil)) != r.SHA256:
		return damaged(r.path, "is not what was saved: its checksum is another")
	}
	return nil
}
