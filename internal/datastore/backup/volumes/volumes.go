// Package volumes keeps the contents of volumes in the place of a backup. A version is what a volume had at one time: a list of pieces,
// each of which is in the place once, however many versions have it. The place can neither read nor forge them: pieces are encrypted to a key
// of the volume, which only the recovery key opens, and are named by a keyed hash of what they have. Whoever restores knows the checksum of
// the version from the cluster's objects.
package volumes

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"filippo.io/age"
	"github.com/restic/chunker"

	"github.com/kedge-dev/kedge/internal/datastore/backup/chain"
	"github.com/kedge-dev/kedge/internal/datastore/backup/place"
)

// formatVersion increases when older versions of kedge cannot read the files any more.
const formatVersion = 1

// The folders of a place: root/VOLUME/versions and root/VOLUME/pieces.
const (
	root           = "volumes"
	versionsFolder = "versions"
	piecesFolder   = "pieces"
)

// Sizes of pieces in bytes. The average is 2 to the power of averageBits.
const (
	leastPiece  = 512 << 10
	mostPiece   = 8 << 20
	averageBits = 21
)

// Ref names a version. The cluster keeps it.
type Ref struct {
	// Name is that of the version's file, and Sum the SHA-256 of that file in hexadecimal.
	Name string `json:"name"`
	Sum  string `json:"sum"`
}

// Version is the file of a version. Everybody who reads the place can read it.
type Version struct {
	Format int `json:"format"`
	// Volume is the name of the PersistentVolume.
	Volume string    `json:"volume"`
	Time   time.Time `json:"time"`
	// About is what the node says of the volume, so that another node can make it anew.
	About json.RawMessage `json:"about"`
	// Size is that of the contents, a tar archive, in bytes.
	Size int64 `json:"size"`
	// Recipient is the public key of age to which the pieces are encrypted. Key is the secret half, which the recovery key opens.
	Recipient string `json:"recipient"`
	Key       []byte `json:"key"`
	// Pieces are the names of the pieces, in their order.
	Pieces []string `json:"pieces"`
}

// Store keeps the versions of volumes in a place.
type Store struct {
	place    place.Place
	names    []byte
	polynome chunker.Pol
	recovery []age.Recipient
	// rest is called after work that took so long.
	rest func(context.Context, time.Duration)
}

// New returns the store of a cluster that may write to a place.
func New(at place.Place, writer *chain.Writer) (*Store, error) {
	recovery, err := writer.Recipients()
	if err != nil {
		return nil, err
	}
	s, err := Reader(at, writer.Names)
	if err != nil {
		return nil, err
	}
	s.recovery = recovery
	return s, nil
}

// Reader returns a store that can only be read. names is the key of the hashes.
func Reader(at place.Place, names []byte) (*Store, error) {
	if len(names) == 0 {
		return nil, errors.New("the backup was made by a kedge that could not keep volumes: set backup to another folder, and make a recovery key for it")
	}
	// Where contents are cut must not tell what they are, so it depends on the key.
	polynome, err := chunker.DerivePolynomial(&stream{key: names})
	if err != nil {
		return nil, fmt.Errorf("derive from the key of the backup: %w", err)
	}
	return &Store{place: at, names: names, polynome: polynome, rest: pause}, nil
}

// pause waits.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// stream is an endless stream of bytes that only the key determines.
type stream struct {
	key   []byte
	count byte
	left  []byte
}

func (s *stream) Read(p []byte) (int, error) {
	if len(s.left) == 0 {
		s.left = hash(s.key, []byte("polynomial"), []byte{s.count})
		s.count++
	}
	n := copy(p, s.left)
	s.left = s.left[n:]
	return n, nil
}

func hash(key []byte, parts ...[]byte) []byte {
	h := hmac.New(sha256.New, key)
	for _, part := range parts {
		h.Write(part)
	}
	return h.Sum(nil)
}

// pieceName returns the name of a piece that is encrypted to a recipient. A piece that an interrupted call has left belongs to a key that nobody has, so
// it must have another name.
func (s *Store) pieceName(recipient string, content []byte) string {
	return hex.EncodeToString(hash(s.names, []byte(recipient), content))
}

// folder returns the folder of a volume in the place. Names of PersistentVolumes have no slashes, and begin with no dot.
func folder(volume string) string { return path.Join(root, volume) }

// pieceFile returns the file of a piece.
func pieceFile(volume, name string) string {
	return path.Join(folder(volume), piecesFolder, name[:1], name[1:])
}

// versionTime is how the name of a version begins.
const versionTime = "20060102T150405Z"

// Progress is told how many bytes have been read.
type Progress func(done int64)

// Saved is what Save has done.
type Saved struct {
	Ref
	// Size is that of the contents, and Sent that of the files that were written, in bytes.
	Size, Sent int64
}

// Save writes a version of a volume. before names an earlier version of it, whose pieces are used again. Save takes at most half of a processor.
func (s *Store) Save(ctx context.Context, v Version, before *Ref, content io.Reader, progress Progress) (Saved, error) {
	there, err := s.begin(ctx, &v, before)
	if err != nil {
		return Saved{}, err
	}
	recipient, err := age.ParseX25519Recipient(v.Recipient)
	if err != nil {
		return Saved{}, fmt.Errorf("read the key of volume %s: %w", v.Volume, err)
	}
	var saved Saved
	cut := chunker.NewWithBoundaries(content, s.polynome, leastPiece, mostPiece)
	cut.SetAverageBits(averageBits)
	buffer := make([]byte, mostPiece)
	for {
		if err := ctx.Err(); err != nil {
			return saved, err
		}
		piece, err := cut.Next(buffer)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return saved, fmt.Errorf("read volume %s: %w", v.Volume, err)
		}
		began := time.Now()
		name := s.pieceName(v.Recipient, piece.Data)
		v.Pieces, v.Size = append(v.Pieces, name), v.Size+int64(piece.Length)
		var sealed []byte
		if !there[name] {
			if sealed, err = chain.Seal(piece.Data, recipient); err != nil {
				return saved, err
			}
		}
		s.rest(ctx, time.Since(began))
		if sealed != nil {
			// An interrupted call may have written it.
			if err := s.place.Create(ctx, pieceFile(v.Volume, name), sealed); err != nil && !errors.Is(err, place.ErrExists) {
				return saved, fmt.Errorf("write to the backup: %w", err)
			}
			there[name] = true
			saved.Sent += int64(len(sealed))
		}
		if progress != nil {
			progress(v.Size)
		}
	}
	return saved, s.finish(ctx, &v, &saved)
}

// begin gives a version the key of the volume, and returns the pieces that are in the place and have been encrypted to it.
func (s *Store) begin(ctx context.Context, v *Version, before *Ref) (map[string]bool, error) {
	there := map[string]bool{}
	if before != nil {
		old, err := s.Version(ctx, v.Volume, *before)
		if err == nil {
			v.Recipient, v.Key = old.Recipient, old.Key
			return there, s.eachPiece(ctx, v.Volume, func(name string) error {
				there[name] = true
				return nil
			})
		}
		if !errors.Is(err, place.ErrNotFound) && !errors.Is(err, errChanged) {
			return nil, err
		}
	}
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		return nil, fmt.Errorf("make key of volume %s: %w", v.Volume, err)
	}
	v.Recipient = identity.Recipient().String()
	if v.Key, err = chain.Seal([]byte(identity.String()), s.recovery...); err != nil {
		return nil, err
	}
	return there, nil
}

// finish writes the file of a version.
func (s *Store) finish(ctx context.Context, v *Version, saved *Saved) error {
	v.Format = formatVersion
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode version of volume %s: %w", v.Volume, err)
	}
	if len(text) > place.MaxFile {
		return fmt.Errorf("volume %s has more than a backup can keep: about 400 GiB", v.Volume)
	}
	sum := sha256.Sum256(text)
	saved.Sum, saved.Size = hex.EncodeToString(sum[:]), v.Size
	saved.Name = v.Time.UTC().Format(versionTime) + "-" + saved.Sum[:8] + ".json"
	if err := s.place.Create(ctx, s.versionFile(v.Volume, saved.Name), text); err != nil {
		return fmt.Errorf("write to the backup: %w", err)
	}
	saved.Sent += int64(len(text))
	return nil
}

func (s *Store) versionFile(volume, name string) string {
	return path.Join(folder(volume), versionsFolder, name)
}

// errChanged says that a version is not what the cluster knows.
var errChanged = errors.New("it was changed or forged: its checksum does not match")

// Version reads the file of a version. It verifies that it is the one that ref names.
func (s *Store) Version(ctx context.Context, volume string, ref Ref) (*Version, error) {
	file := s.versionFile(volume, ref.Name)
	text, err := s.place.Read(ctx, file)
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(text); hex.EncodeToString(sum[:]) != ref.Sum {
		return nil, fmt.Errorf("%s of the backup: %w", file, errChanged)
	}
	var v Version
	if err := json.Unmarshal(text, &v); err != nil {
		return nil, fmt.Errorf("read %s of the backup: %w", file, err)
	}
	switch {
	case v.Format > formatVersion:
		return nil, fmt.Errorf("%s of the backup was written by a newer kedge: upgrade this one", file)
	case v.Volume != volume:
		return nil, fmt.Errorf("%s of the backup: %w", file, errChanged)
	}
	return &v, nil
}

// OpenKey returns the secret key of a version's volume.
func (v *Version) OpenKey(key *chain.RecoveryKey) (string, error) {
	opened, err := key.Open(v.Key)
	if err != nil {
		return "", fmt.Errorf("open the key of volume %s: %w", v.Volume, err)
	}
	return string(opened), nil
}

// Restore writes the contents of a version to w. secret is the key of the volume. Each piece is verified before it is written.
func (s *Store) Restore(ctx context.Context, v *Version, secret string, w io.Writer, progress Progress) error {
	identity, err := age.ParseX25519Identity(secret)
	if err != nil {
		return fmt.Errorf("the key of volume %s cannot be read", v.Volume) // the error may contain a part of the key
	}
	var done int64
	for _, name := range v.Pieces {
		content, err := s.piece(ctx, v, name, identity)
		if err != nil {
			return fmt.Errorf("read volume %s from the backup: %w", v.Volume, err)
		}
		if _, err := w.Write(content); err != nil {
			return err
		}
		if done += int64(len(content)); progress != nil {
			progress(done)
		}
	}
	if done != v.Size {
		return fmt.Errorf("volume %s of the backup has %d bytes, not %d", v.Volume, done, v.Size)
	}
	return nil
}

func (s *Store) piece(ctx context.Context, v *Version, name string, identity age.Identity) ([]byte, error) {
	if len(name) != 2*sha256.Size || strings.ContainsAny(name, "/.") {
		return nil, fmt.Errorf("a piece has the impossible name %.80q", name)
	}
	file := pieceFile(v.Volume, name)
	sealed, err := s.place.Read(ctx, file)
	if err != nil {
		return nil, err
	}
	content, err := chain.Unseal(sealed, identity)
	if err == nil && s.pieceName(v.Recipient, content) != name {
		err = errChanged
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return content, nil
}

// eachPiece calls each with the names of all pieces of a volume.
func (s *Store) eachPiece(ctx context.Context, volume string, each func(name string) error) error {
	pieces := path.Join(folder(volume), piecesFolder)
	firsts, err := s.place.Names(ctx, pieces)
	if err != nil {
		return err
	}
	for _, first := range firsts {
		names, err := s.place.Names(ctx, path.Join(pieces, first))
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := each(strings.TrimSuffix(first, "/") + name); err != nil {
				return err
			}
		}
	}
	return nil
}
