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

// formatVersion increases when older versions of kedge cannot read new snapshots
// any more.
const formatVersion = 1

// A snapshot is a zstd file, so that `zstd -d` extracts what the datastore saved.
// Its first frame is one that zstd skips (RFC 8878, 3.1.2). That frame contains
// the signature, the SHA-256 of the manifest in hexadecimal, a newline, and the
// manifest in JSON.
const (
	skippableMagic = 0x184D2A50
	signature      = "kedge snapshot\n"
	sumLength      = 2*sha256.Size + 1
	// maxManifest is in bytes. Most of a manifest is secrets.
	maxManifest = 4 << 20
	// window is how much of the content the compression looks back at, in bytes:
	// little enough for a small machine. A file that needs more than maxWindow is
	// refused. The format allows 512 MB.
	window    = 1 << 20
	maxWindow = 8 << 20
)

// Manifest describes a snapshot.
type Manifest struct {
	Format int `json:"format"`
	// Kedge and Kubernetes are the versions that saved the snapshot.
	Kedge      string `json:"kedge"`
	Kubernetes string `json:"kubernetes"`
	// Datastore is the kind of the content (datastore.Snapshotter).
	Datastore string    `json:"datastore"`
	Name      string    `json:"name"`
	Node      string    `json:"node"`
	Time      time.Time `json:"time"`
	Revision  int64     `json:"revision"`
	// Size and SHA256 are those of the content before compression.
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
	// Secrets has the SHA-256 of each file in Sealed, by name.
	Secrets map[string]string `json:"secrets"`
	Sealed  join.Sealed       `json:"sealed"`
}

// errDamaged says that a file was changed after it was saved.
var errDamaged = errors.New("the snapshot is damaged")

// damaged returns an error that says what the user can do about a damaged file.
func damaged(path, what string) error {
	return fmt.Errorf("%w: %s %s: use another snapshot (`kedge snapshot list`), or another copy of this one", errDamaged, path, what)
}

// write makes the snapshot at path from the manifest and the file content. It
// fills in the manifest's size and checksum. The file appears complete or not at
// all.
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
	return datadir.Replace(temporary, path, path+".old") // there is no old file, because names contain the time
}

// temporaryFile returns the name of path while it is being written. list ignores
// such names.
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

// reader is an opened snapshot. Its manifest has been read.
type reader struct {
	Manifest
	path string
	file *os.File
	rest *bufio.Reader
}

// open opens the snapshot at path and reads its manifest. The caller closes the
// reader.
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
		return damaged(r.path, fmt.Sprintf("has only %d bytes", n))
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
		return damaged(r.path, "has a changed manifest: its checksum does not match")
	}
	// Only these two fields are known of later formats.
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

// settings names the setting that gives a server a datastore of each kind.
var settings = map[string]string{
	"etcd": " (cluster-init)",
	"sql":  " (datastore-endpoint of PostgreSQL or MySQL)",
}

// acceptable returns an error if a kedge of version ours, with a datastore of the
// given kind, cannot restore the snapshot.
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
	// A newer minor version of Kubernetes may have stored objects in versions
	// that this one cannot read. A newer patch version does not.
	if theirs.Major() > own.Major() || theirs.Major() == own.Major() && theirs.Minor() > own.Minor() {
		return newer
	}
	if r.Datastore != kind {
		return fmt.Errorf("%s was saved from a datastore of the kind %s, and this server's is %s: restore it on a server with a datastore of the same kind%s", r.path, r.Datastore, kind, settings[r.Datastore])
	}
	return nil
}

// extract writes the content to target. It fails if the size or checksum does not
// match the manifest.
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
	// Reading one byte too many shows that the content is too long.
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
		return damaged(r.path, "is not what was saved: its checksum does not match")
	}
	return nil
}
