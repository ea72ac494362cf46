// Package trial runs a new executable of kedge for a while before it is installed, so that a
// node goes back by itself if the new one does not work.
//
// # Who does what
//
//   - The node's upgrader (internal/node/upgrade) puts the new executable beside the installed
//     one, writes a Record, and ends with ErrBegin. All components stop.
//   - The process executes itself again as the Guard. It keeps its process id, so that a service
//     manager sees nothing. The Guard starts the new executable with the same arguments and
//     environment, and listens to it over a pipe.
//   - The new executable knows from its environment that it is a Child. It says over the pipe
//     what it waits for, when it is ready, and why it fails.
//   - When the Child was ready for a while, the Guard installs it. Otherwise the Guard notes why
//     not. In both cases it ends the Child and executes what is installed, with the same process
//     id again.
//
// The installed executable is the old one until the new one has proven itself. Therefore a
// crash, a kill -9 or a power cut at any time starts the old one. It finds a Record without an
// end, and may try again.
//
// A Guard and its Child are different versions of kedge. The names of the two variables and the
// lines on the pipe must stay as they are.
package trial

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/upgrades"
)

// ErrBegin ends a kedge that is to execute itself again as the Guard of a trial.
var ErrBegin = errors.New("a new executable is to be tried")

// MaxAttempts is how often a trial is begun if it is interrupted each time.
const MaxAttempts = 3

// Record is what a node keeps about the last order that it has tried.
type Record struct {
	Order upgrades.Order `json:"order"`
	// Report is what became of it. Its stage is Trying until the trial has ended.
	Report upgrades.Report `json:"report"`
	// Attempts is how often the trial has begun.
	Attempts int `json:"attempts"`
}

// Read reads the record of a node. It is the zero Record if there is none.
func Read(file string) (Record, error) {
	var r Record
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return Record{}, fmt.Errorf("read the record of the last upgrade: %w", err)
	}
	if err = json.Unmarshal(data, &r); err == nil {
		err = r.Order.Check()
	}
	if err != nil {
		return Record{}, fmt.Errorf("read the record of the last upgrade: %w. Remove the damaged file with `rm %s`, and upgrade the node again", err, file)
	}
	return r, nil
}

// Begin notes that the trial of an order begins. The caller ends with ErrBegin then.
func Begin(file string, order upgrades.Order) (Record, error) {
	before, err := Read(file)
	if err != nil {
		return Record{}, err
	}
	r := Record{Order: order, Attempts: 1}
	if before.Order.ID == order.ID {
		r.Attempts += before.Attempts
	}
	r = r.at(upgrades.Trying, "")
	return r, r.write(file)
}

// write writes the record, so that a crash leaves this one or the one before.
func (r Record) write(file string) error {
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode the record of an upgrade: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return fmt.Errorf("make the folder of upgrades: %w", datadir.Explain(err))
	}
	return datadir.WriteFile(file, data, 0o600)
}

// at returns the record with another stage.
func (r Record) at(stage upgrades.Stage, message string) Record {
	r.Report = upgrades.Report{ID: r.Order.ID, Stage: stage, Message: message, Time: time.Now().UTC().Truncate(time.Second)}
	return r
}

// Candidate returns where the new executable with a digest lies until it is installed: beside
// the installed one, because only there it can be renamed.
func Candidate(installed, digest string) string {
	return filepath.Join(filepath.Dir(installed), ".kedge-"+digest[:digits])
}

// Explain adds to an error about a file beside the installed executable what a user can do about
// it. It returns other errors unchanged.
func Explain(err error) error {
	switch {
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf("%w: mount it read-write, or upgrade kedge where the image of this host comes from", err)
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fmt.Errorf("%w: free some space there, and upgrade the node again", err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: if `lsattr` shows that it must not change, run `chattr -i` for it", err)
	}
	return err
}

// digits is how many digits of its digest the name of a new executable has.
const digits = 12

// Resume says what became of the last trial, after this process has started from the installed
// executable. It removes new executables that were not installed. If the trial was interrupted
// and may begin again, the stage stays Trying.
func Resume(file, installed string) (Record, error) {
	r, err := Read(file)
	if err != nil {
		return Record{}, errors.Join(err, removeCandidates(installed))
	}
	if r.Report.Stage == upgrades.Trying {
		digest, err := Digest(installed)
		switch {
		case err != nil:
			return Record{}, err
		case digest == r.Order.SHA256: // the Guard had no time to note it
			r = r.at(upgrades.Upgraded, "")
		case r.Attempts >= MaxAttempts:
			r = r.at(upgrades.Failed, fmt.Sprintf("the trial of %s was interrupted %d times: kedge was stopped or killed before the new one had proven itself", r.Order.Version, r.Attempts))
		}
		if r.Report.Stage != upgrades.Trying {
			if err := r.write(file); err != nil {
				return Record{}, err
			}
		}
	}
	return r, removeCandidates(installed)
}

// removeCandidates removes new executables beside the installed one.
func removeCandidates(installed string) error {
	pattern := filepath.Join(filepath.Dir(installed), ".kedge-")
	for range digits {
		pattern += "[0-9a-f]"
	}
	left, err := filepath.Glob(pattern)
	for _, path := range left {
		err = errors.Join(err, os.Remove(path))
	}
	if err != nil {
		return fmt.Errorf("remove what a trial has left: %w", err)
	}
	return nil
}

// Digest returns the SHA-256 digest of a file as hexadecimal digits.
func Digest(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("read executable: %w", err)
	}
	defer file.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return "", fmt.Errorf("read executable: %w", err)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}
