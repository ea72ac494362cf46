// Package upgrades has what all parts of an upgrade agree on: the custom resource Plan, what
// a server orders a node to run, and what the node tells about it. The controller on a server,
// the upgrader of each node, and `kedge upgrade` use it.
package upgrades

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kedge-dev/kedge/internal/base/foreigntext"
)

const (
	// ControllerUser is the user of the controller on the elected server.
	ControllerUser = "system:kedge:upgrade-controller"

	// ReportAnnotation is on a Node. The node tells in it about the last order that it got, as
	// FormatReport writes it. It writes that as its kubelet, which may change no other Node.
	ReportAnnotation = "upgrade.kedge.dev/report"

	// CordonAnnotation is on a Node that a Plan has cordoned, and must be uncordoned. Its value
	// is the name of the Plan.
	CordonAnnotation = "upgrade.kedge.dev/cordoned-by"
)

// ExecutablePath is where servers with an API server have the executables that nodes get. The
// digest of one follows.
const ExecutablePath = "/v1-kedge/executable/"

// Plans is where the API serves Plans. They belong to no namespace.
var Plans = schema.GroupVersionResource{Group: "upgrade.kedge.dev", Version: "v1alpha1", Resource: "plans"}

// Order is what a server tells a node to run. An Order without a SHA256 tells nothing.
type Order struct {
	// ID is another one for each attempt. A node tries an order once.
	ID string `json:"id,omitempty"`
	// Version is what `kedge version` of the executable says, such as v1.37.2+kedge.2.
	Version string `json:"version,omitempty"`
	// SHA256 is the digest of the executable, as lower-case hexadecimal digits. Size is its
	// length in bytes.
	SHA256 string `json:"sha256,omitempty"`
	Size   int64  `json:"size,omitempty"`
}

// MaxSize is how many bytes an executable may have.
const MaxSize = 1 << 30

// Check refuses what no server sends.
func (o *Order) Check() error {
	if *o == (Order{}) {
		return nil
	}
	switch {
	case o.ID == "" || len(o.ID) > 256:
		return errors.New("an order has no ID, or a long one")
	case !IsVersion(o.Version):
		return fmt.Errorf("%q is not a version of kedge", o.Version)
	case !IsDigest(o.SHA256):
		return fmt.Errorf("%q is not a SHA-256 digest", o.SHA256)
	case o.Size <= 0 || o.Size > MaxSize:
		return fmt.Errorf("an executable of %d bytes is refused: it may have up to %d", o.Size, MaxSize)
	}
	return nil
}

// IsDigest tells whether text is a SHA-256 digest in lower-case hexadecimal digits.
func IsDigest(text string) bool {
	return len(text) == 64 && strings.Trim(text, "0123456789abcdef") == ""
}

// IsVersion tells whether text can be the version of a kedge. A version is also a part of
// URLs and of messages.
func IsVersion(text string) bool {
	rest, ok := strings.CutPrefix(text, "v")
	return ok && len(text) <= 64 && rest != "" &&
		strings.Trim(rest, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.+-") == "" && !strings.Contains(rest, "..")
}

// Stage is how far a node is with an order.
type Stage string

// These are the stages. Upgraded, Failed and Refused are the last ones.
const (
	// Fetching: the node gets the executable, or checks it.
	Fetching Stage = "Fetching"
	// Trying: the node runs the executable, and has not proven yet that it works.
	Trying Stage = "Trying"
	// Upgraded: the executable is installed.
	Upgraded Stage = "Upgraded"
	// Failed: the node went back to the executable that it ran before.
	Failed Stage = "Failed"
	// Refused: the node found before it changed anything that it cannot do this.
	Refused Stage = "Refused"
)

// Report is what a node tells about an order.
type Report struct {
	// ID is that of the Order.
	ID    string `json:"id"`
	Stage Stage  `json:"stage"`
	// Message says why, and what to do, if the order has failed or was refused.
	Message string `json:"message,omitempty"`
	// Time is when the stage began.
	Time time.Time `json:"time"`
}

// maxReport is how many bytes of an annotation ParseReport reads, and maxMessage how many a
// message may have.
const (
	maxReport  = 8 << 10
	maxMessage = 4 << 10
)

// FormatReport returns a Report as the value of the annotation. It cuts a long message off.
func FormatReport(r Report) string {
	r.Message = foreigntext.Cut(r.Message, maxMessage)
	for {
		data, err := json.Marshal(r)
		if err != nil {
			panic(err) // a time of a year that has five digits
		}
		// JSON has up to six bytes for one of the message.
		if len(data) <= maxReport || r.Message == "" {
			return string(data)
		}
		r.Message = foreigntext.Cut(r.Message, len(r.Message)/2)
	}
}

// ParseReport reads the value of the annotation. A node may write anything there. People can read
// the message in a terminal.
func ParseReport(value string) (Report, error) {
	var r Report
	if len(value) > maxReport {
		return Report{}, fmt.Errorf("it has %d bytes; up to %d are read", len(value), maxReport)
	}
	if err := json.Unmarshal([]byte(value), &r); err != nil {
		return Report{}, err
	}
	switch r.Stage {
	case Fetching, Trying, Upgraded, Failed, Refused:
	default:
		return Report{}, fmt.Errorf("%q is not a stage of an upgrade", r.Stage)
	}
	if r.ID == "" {
		return Report{}, errors.New("it does not say which order it is about")
	}
	r.Message = foreigntext.Printable(r.Message)
	return r, nil
}
