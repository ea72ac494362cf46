package chain

import (
	"bufio"
	"bytes"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"filippo.io/age"
)

// RecoveryKey opens a backup, and says who may write it. Its holder is the owner of the cluster. It is a key of age, so that
// `age -d` also opens the files.
type RecoveryKey struct {
	identity *age.X25519Identity
	root     ed25519.PrivateKey
	names    []byte
}

// The contexts make further keys of a key of age: rootContext the one that signs, and namesContext that of Writer.Names. They must never change.
const (
	rootContext  = "kedge.dev/backup root v1"
	namesContext = "kedge.dev/backup names v1"
)

// NewRecoveryKey makes a key.
func NewRecoveryKey() (*RecoveryKey, error) {
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		return nil, fmt.Errorf("make recovery key: %w", err)
	}
	return recoveryKey(identity)
}

func recoveryKey(identity *age.X25519Identity) (*RecoveryKey, error) {
	derive := func(context string, length int) ([]byte, error) {
		return hkdf.Key(sha256.New, []byte(identity.String()), nil, context, length)
	}
	seed, err := derive(rootContext, ed25519.SeedSize)
	if err != nil {
		return nil, fmt.Errorf("derive from recovery key: %w", err)
	}
	names, err := derive(namesContext, sha256.Size)
	if err != nil {
		return nil, fmt.Errorf("derive from recovery key: %w", err)
	}
	return &RecoveryKey{identity, ed25519.NewKeyFromSeed(seed), names}, nil
}

// ParseRecoveryKey reads what String or age-keygen has written. Lines that begin with # are comments.
func ParseRecoveryKey(text []byte) (*RecoveryKey, error) {
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		identity, err := age.ParseX25519Identity(line)
		if err != nil {
			break // the error may contain a part of the key
		}
		return recoveryKey(identity)
	}
	return nil, errors.New("this is not a recovery key: it begins with AGE-SECRET-KEY-1. `kedge backup key` has printed it")
}

// String returns the secret key.
func (k *RecoveryKey) String() string { return k.identity.String() }

// Root returns what verifies that the owner has named a writer.
func (k *RecoveryKey) Root() ed25519.PublicKey { return k.root.Public().(ed25519.PublicKey) }

// Names returns the key of the hashes that name the pieces of volumes.
func (k *RecoveryKey) Names() []byte { return k.names }

// Writer is what a server needs to write a backup, and not to read it.
type Writer struct {
	Appointment Appointment        `json:"appointment"`
	Signature   []byte             `json:"signature"`
	Private     ed25519.PrivateKey `json:"private"`
	// Names is the key of the hashes that name the pieces of volumes. All writers have the same.
	Names []byte `json:"names,omitempty"`
}

// Appointment says that the holder of a recovery key lets a cluster write. There is one more after each restore, so
// that a machine that was stolen or comes back can no longer write.
type Appointment struct {
	// Number is 1 for the first one.
	Number int `json:"number"`
	// Root belongs to the recovery key. Recipient is the public key of age to which the writer encrypts.
	Root      ed25519.PublicKey `json:"root"`
	Recipient string            `json:"recipient"`
	// Key verifies what the writer has written.
	Key ed25519.PublicKey `json:"key"`
	// After is the last entry of the writers before, and AfterSum its sum. Later entries of these writers are not valid.
	After    int64     `json:"after"`
	AfterSum string    `json:"afterSum,omitempty"`
	Time     time.Time `json:"time"`
}

// Appoint makes a new writer that continues after an entry. The entry is nil if there is none.
func (k *RecoveryKey) Appoint(number int, after *Entry, now time.Time) (*Writer, error) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, fmt.Errorf("make key of the writer: %w", err)
	}
	w := &Writer{Private: private, Names: k.names, Appointment: Appointment{
		Number: number, Root: k.Root(), Recipient: k.identity.Recipient().String(), Key: public, Time: now.UTC(),
	}}
	if after != nil {
		w.Appointment.After, w.Appointment.AfterSum = after.Number, after.Sum
	}
	text, err := json.Marshal(w.Appointment)
	if err != nil {
		return nil, fmt.Errorf("encode appointment: %w", err)
	}
	w.Signature = ed25519.Sign(k.root, text)
	return w, nil
}
