// Package chain is a log in a place that the writer does not trust: files with numbers, each of which has the checksum of
// the one before. The writer signs and encrypts them, and cannot read them. The recovery key verifies and opens them. So
// nobody who reads, changes, removes or adds files in the place learns or forges anything unnoticed. Only the newest
// files can be removed unnoticed, because nobody else knows of them.
//
// Package backup writes the log, and package rebuild reads it.
package chain

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"filippo.io/age"
	"github.com/klauspost/compress/zstd"

	"github.com/kedge-dev/kedge/internal/datastore/backup/place"
)

// formatVersion increases when older versions of kedge cannot read the files any more.
const formatVersion = 1

// The folders of a place.
const (
	writersFolder = "writers"
	logFolder     = "log"
	partsFolder   = "bases"
	// perFolder is how many entries a folder has, so that the newest entry is found without listing all.
	perFolder = 1000
)

// Kind says what an entry is.
type Kind string

// The kinds of entries.
const (
	// Changes has changes, one after the other.
	Changes Kind = "changes"
	// Base names the parts of a whole state, which are files beside the log.
	Base Kind = "base"
)

// Entry is the head of a file of the log. Everybody who reads the place can read it.
type Entry struct {
	Format int   `json:"format"`
	Number int64 `json:"number"`
	// Writer is the number of the appointment. Term is a number that each server takes when it begins to write.
	Writer int   `json:"writer"`
	Term   int64 `json:"term"`
	// Previous is the sum of the entry before.
	Previous string    `json:"previous,omitempty"`
	Kind     Kind      `json:"kind"`
	Time     time.Time `json:"time"`
	// With this entry, the log has all changes after revision From up to revision To. A base has no changes: From and To are
	// those of what the log had before, except that a base may continue after a gap.
	From int64 `json:"from"`
	To   int64 `json:"to"`
	// Revision is that of a base, and Parts are its files.
	Revision int64  `json:"revision,omitempty"`
	Parts    []Part `json:"parts,omitempty"`
	// LastBase is the last base before this entry. It is nil if there was none.
	LastBase *LastBase `json:"lastBase,omitempty"`
	// Size and SHA256 are those of the encrypted content that follows.
	Size   int    `json:"size"`
	SHA256 string `json:"sha256,omitempty"`

	// Sum is the SHA-256 of the file's first line, in hexadecimal.
	Sum string `json:"-"`
}

// LastBase says what a writer needs to know about the last base, so that it need not look for it.
type LastBase struct {
	Number   int64     `json:"number"`
	Revision int64     `json:"revision"`
	Time     time.Time `json:"time"`
	// Size is that of its parts, in bytes. Since is the size of the entries after it.
	Size  int64 `json:"size"`
	Since int64 `json:"since"`
}

// Base returns what LastBase of the next entry is.
func (e *Entry) Base() *LastBase {
	if e.Kind == Base {
		b := &LastBase{Number: e.Number, Revision: e.Revision, Time: e.Time}
		for _, part := range e.Parts {
			b.Size += int64(part.Size)
		}
		return b
	}
	if e.LastBase == nil {
		return nil
	}
	b := *e.LastBase
	b.Since += int64(e.Size)
	return &b
}

// Part is a file of a base. It is a plain file of age.
type Part struct {
	Name   string `json:"name"`
	Size   int    `json:"size"`
	SHA256 string `json:"sha256"`
}

// sum returns the SHA-256 in hexadecimal.
func sum(content []byte) string {
	s := sha256.Sum256(content)
	return hex.EncodeToString(s[:])
}

// Chain is the log of one cluster.
type Chain struct {
	place place.Place
	root  ed25519.PublicKey
	// appointments are those of the root. The index is the number less 1.
	appointments []Appointment
}

// Open reads who may write. It fails if the log belongs to another recovery key. It succeeds if there is no log yet.
func Open(ctx context.Context, p place.Place, root ed25519.PublicKey) (*Chain, error) {
	c := &Chain{place: p, root: root}
	names, err := p.Names(ctx, writersFolder)
	if err != nil {
		return nil, err
	}
	for i, name := range names {
		file, err := p.Read(ctx, path.Join(writersFolder, name))
		if err != nil {
			return nil, err
		}
		a, err := c.appointment(file, i+1)
		if err != nil {
			return nil, fmt.Errorf("%s/%s/%s: %w", p, writersFolder, name, err)
		}
		c.appointments = append(c.appointments, a)
	}
	return c, nil
}

// appointment verifies an appointment.
func (c *Chain) appointment(file []byte, number int) (a Appointment, err error) {
	head, signature, rest, err := split(file)
	if err != nil {
		return a, err
	}
	if len(rest) > 0 {
		return a, errForged
	}
	if err := decode(head, &a); err != nil {
		return a, err
	}
	if !bytes.Equal(a.Root, c.root) {
		return a, errors.New("it belongs to another recovery key, that of another cluster: use another folder for each cluster, or the key that belongs to this one")
	}
	if !ed25519.Verify(c.root, head, signature) {
		return a, errForged
	}
	if a.Number != number || len(a.Key) != ed25519.PublicKeySize {
		return a, fmt.Errorf("it is number %d where number %d should be", a.Number, number)
	}
	return a, nil
}

// Appointments returns who may write, and who might before.
func (c *Chain) Appointments() []Appointment { return slices.Clone(c.appointments) }

// Admit makes the writer the one who may write. It fails if there is another one of that number.
func (c *Chain) Admit(ctx context.Context, w *Writer) error {
	head, err := json.Marshal(w.Appointment)
	if err != nil {
		return fmt.Errorf("encode appointment: %w", err)
	}
	if err := c.place.Create(ctx, path.Join(writersFolder, fmt.Sprintf("%04d", w.Appointment.Number)), signed(head, w.Signature, nil)); err != nil {
		return fmt.Errorf("name the new writer of the backup: %w", err)
	}
	c.appointments = append(c.appointments, w.Appointment)
	return nil
}

// entryName returns the name of the file of an entry.
func entryName(number int64) string {
	return path.Join(logFolder, fmt.Sprintf("%09d", number/perFolder), fmt.Sprintf("%012d", number))
}

// folders returns the folders of the log.
func (c *Chain) folders(ctx context.Context) ([]string, error) {
	names, err := c.place.Names(ctx, logFolder)
	if err != nil {
		return nil, err
	}
	for i, name := range names {
		names[i] = path.Join(logFolder, strings.TrimSuffix(name, "/"))
	}
	return names, nil
}

// numbers returns the numbers of the entries of a folder.
func (c *Chain) numbers(ctx context.Context, folder string) ([]int64, error) {
	names, err := c.place.Names(ctx, folder)
	if err != nil {
		return nil, err
	}
	var found []int64
	for _, name := range names {
		number, err := strconv.ParseInt(name, 10, 64)
		if err != nil || path.Base(entryName(number)) != name || path.Dir(entryName(number)) != folder {
			return nil, fmt.Errorf("%s has a file %s/%s, which is none of a backup: move it away", c.place, folder, name)
		}
		found = append(found, number)
	}
	return found, nil
}

// Numbers returns the numbers of all entries.
func (c *Chain) Numbers(ctx context.Context) (all []int64, err error) {
	folders, err := c.folders(ctx)
	if err != nil {
		return nil, err
	}
	for _, folder := range folders {
		numbers, err := c.numbers(ctx, folder)
		if err != nil {
			return nil, err
		}
		all = append(all, numbers...)
	}
	return all, nil
}

// Tail returns the newest entry, or nil if there is none.
func (c *Chain) Tail(ctx context.Context) (*Entry, error) {
	folders, err := c.folders(ctx)
	if err != nil {
		return nil, err
	}
	for _, folder := range slices.Backward(folders) {
		numbers, err := c.numbers(ctx, folder)
		if err != nil {
			return nil, err
		}
		if len(numbers) > 0 {
			entry, _, err := c.Read(ctx, numbers[len(numbers)-1])
			return entry, err
		}
	}
	return nil, nil
}

// Read returns an entry and its encrypted content, and verifies both.
func (c *Chain) Read(ctx context.Context, number int64) (*Entry, []byte, error) {
	file, err := c.place.Read(ctx, entryName(number))
	if err != nil {
		return nil, nil, fmt.Errorf("entry %d of the backup: %w", number, err)
	}
	entry, content, err := c.entry(file, number)
	if err != nil {
		return nil, nil, fmt.Errorf("entry %d of the backup, %s/%s: %w", number, c.place, entryName(number), err)
	}
	return entry, content, nil
}

// entry verifies the file of an entry.
func (c *Chain) entry(file []byte, number int64) (*Entry, []byte, error) {
	head, signature, content, err := split(file)
	if err != nil {
		return nil, nil, err
	}
	var e Entry
	if err := decode(head, &e); err != nil {
		return nil, nil, err
	}
	if e.Format > formatVersion {
		return nil, nil, errors.New("a newer kedge wrote it: use that version")
	}
	if e.Writer < 1 || e.Writer > len(c.appointments) {
		return nil, nil, fmt.Errorf("its writer is number %d, and there are %d", e.Writer, len(c.appointments))
	}
	if !ed25519.Verify(c.appointments[e.Writer-1].Key, head, signature) {
		return nil, nil, errForged
	}
	e.Sum = sum(head)
	if err := c.permitted(&e); err != nil {
		return nil, nil, err
	}
	switch {
	case e.Number != number:
		return nil, nil, fmt.Errorf("it is entry %d: somebody has put it into the place of another", e.Number)
	case len(content) != e.Size || sum(content) != e.SHA256:
		return nil, nil, errors.New("its content was changed or is cut off: the checksum does not match")
	}
	return &e, content, nil
}

// permitted fails if the writer of an entry was no longer the one who may write.
func (c *Chain) permitted(e *Entry) error {
	if e.Writer == len(c.appointments) {
		return nil
	}
	next := c.appointments[e.Writer]
	if e.Number > next.After || e.Number == next.After && e.Sum != next.AfterSum {
		return fmt.Errorf("the machine that the cluster had before the restore of %s wrote it, and it may not write any more: change the keys of the place, so that it cannot, and delete this file", next.Time.Format(time.RFC3339))
	}
	return nil
}

// Follows fails unless entry is the one after previous.
func (e *Entry) Follows(previous *Entry) error {
	if e.Number != previous.Number+1 {
		return fmt.Errorf("entries %d to %d of the backup are missing", previous.Number+1, e.Number-1)
	}
	if e.Previous != previous.Sum {
		return fmt.Errorf("entry %d of the backup does not follow entry %d: one of them was replaced by another", e.Number, previous.Number)
	}
	return nil
}

// ErrOvertaken says that another server has written since.
var ErrOvertaken = errors.New("another server writes to this backup")

// Append signs an entry and adds it to the log after the tail, which is nil if there is none. Its caller sets what the entry says of
// the content. It fails with ErrOvertaken if there is another entry of that number.
func (c *Chain) Append(ctx context.Context, w *Writer, tail *Entry, e Entry, content []byte) (*Entry, error) {
	e.Format, e.Writer, e.Number, e.Previous = formatVersion, w.Appointment.Number, 1, ""
	if tail != nil {
		e.Number, e.Previous, e.LastBase = tail.Number+1, tail.Sum, tail.Base()
	}
	e.Size, e.SHA256 = len(content), sum(content)
	head, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("encode entry: %w", err)
	}
	e.Sum = sum(head)
	file := signed(head, ed25519.Sign(w.Private, head), content)
	err = c.place.Create(ctx, entryName(e.Number), file)
	if errors.Is(err, place.ErrExists) {
		// An attempt whose answer was lost may have succeeded.
		there, readErr := c.place.Read(ctx, entryName(e.Number))
		switch {
		case readErr != nil:
			return nil, readErr
		case !bytes.Equal(there, file):
			return nil, ErrOvertaken
		}
		err = nil
	}
	if err != nil {
		return nil, err
	}
	return &e, nil
}

// Remove removes an entry and the parts of a base.
func (c *Chain) Remove(ctx context.Context, e *Entry) error {
	if err := c.place.Remove(ctx, entryName(e.Number)); err != nil {
		return err
	}
	return c.RemoveParts(ctx, e.Parts)
}

// RemoveParts removes files of a base.
func (c *Chain) RemoveParts(ctx context.Context, parts []Part) error {
	for _, part := range parts {
		if err := c.place.Remove(ctx, path.Join(partsFolder, part.Name)); err != nil {
			return err
		}
	}
	return nil
}

// RemoveBases removes the parts of bases, except those whose entries have numbers that are kept.
func (c *Chain) RemoveBases(ctx context.Context, keeps func(number int64) bool) error {
	folders, err := c.place.Names(ctx, partsFolder)
	if err != nil {
		return err
	}
	for _, folder := range folders {
		text, _, _ := strings.Cut(folder, "-")
		if number, err := strconv.ParseInt(text, 10, 64); err != nil || keeps(number) {
			continue
		}
		files, err := c.place.Names(ctx, path.Join(partsFolder, folder))
		if err != nil {
			return err
		}
		for _, file := range files {
			if err := c.place.Remove(ctx, path.Join(partsFolder, folder, file)); err != nil {
				return err
			}
		}
	}
	return nil
}

// BaseName returns how the parts of the base begin that the next entry after the tail is. Each term has names of its own.
func BaseName(tail *Entry, term int64) string {
	number := int64(1)
	if tail != nil {
		number = tail.Number + 1
	}
	return fmt.Sprintf("%012d-%d", number, term)
}

// AddPart adds a file of a base, whose entry comes later.
func (c *Chain) AddPart(ctx context.Context, name string, content []byte) (Part, error) {
	err := c.place.Create(ctx, path.Join(partsFolder, name), content)
	if err != nil {
		return Part{}, fmt.Errorf("add part of a base: %w", err)
	}
	return Part{Name: name, Size: len(content), SHA256: sum(content)}, nil
}

// ReadPart returns a file of a base, still encrypted, and verifies it.
func (c *Chain) ReadPart(ctx context.Context, part Part) ([]byte, error) {
	if path.Clean("/"+part.Name) != "/"+part.Name {
		return nil, fmt.Errorf("a base of the backup has a part of the name %q, which is not possible", part.Name)
	}
	content, err := c.place.Read(ctx, path.Join(partsFolder, part.Name))
	if err != nil {
		return nil, fmt.Errorf("read part of a base: %w", err)
	}
	if len(content) != part.Size || sum(content) != part.SHA256 {
		return nil, fmt.Errorf("%s/%s/%s was changed or is cut off: the checksum does not match", c.place, partsFolder, part.Name)
	}
	return content, nil
}

// window is how much the compression looks back at, in bytes. It is little, so that a small machine can write. The fastest
// level of the compression takes a third of the memory, and for changes of objects its results are not longer.
const window = 256 << 10

// maxWindow is the largest window that is read. Older versions wrote with 1 MiB.
const maxWindow = 8 << 20

// Seal compresses and encrypts.
func Seal(content []byte, recipients ...age.Recipient) ([]byte, error) {
	var sealed bytes.Buffer
	encrypted, err := age.Encrypt(&sealed, recipients...)
	if err != nil {
		return nil, fmt.Errorf("encrypt: %w", err)
	}
	compressed, err := zstd.NewWriter(encrypted, zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true), zstd.WithWindowSize(window),
		zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		return nil, fmt.Errorf("compress: %w", err)
	}
	_, err = compressed.Write(content)
	if err = errors.Join(err, compressed.Close()); err == nil {
		err = encrypted.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}
	return sealed.Bytes(), nil
}

// Recipients returns to whom a writer encrypts.
func (w *Writer) Recipients() ([]age.Recipient, error) {
	recipient, err := age.ParseX25519Recipient(w.Appointment.Recipient)
	if err != nil {
		return nil, fmt.Errorf("read the public half of the recovery key: %w", err)
	}
	return []age.Recipient{recipient}, nil
}

// maxContent is the size of the largest content, in bytes. A forged file cannot fill the memory.
const maxContent = 64 << 20

// Open decrypts and unpacks what Seal has made.
func (k *RecoveryKey) Open(sealed []byte) ([]byte, error) { return Unseal(sealed, k.identity) }

// Unseal decrypts and unpacks what Seal has made.
func Unseal(sealed []byte, identities ...age.Identity) ([]byte, error) {
	decrypted, err := age.Decrypt(bytes.NewReader(sealed), identities...)
	if err != nil {
		return nil, fmt.Errorf("decrypt: %w", err)
	}
	unpacked, err := zstd.NewReader(decrypted, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return nil, fmt.Errorf("unpack: %w", err)
	}
	defer unpacked.Close()
	content, err := io.ReadAll(io.LimitReader(unpacked, maxContent+1))
	if err != nil {
		return nil, fmt.Errorf("decrypt and unpack: %w", err)
	}
	if len(content) > maxContent {
		return nil, errors.New("its content is larger than any that kedge writes")
	}
	return content, nil
}
