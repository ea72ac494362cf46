package acme

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/crypto/acme"
)

// problemPrefix is that of the types of problems that RFC 8555 knows (section 6.7).
const problemPrefix = "urn:ietf:params:acme:error:"

const (
	// maxQuoted is how much of an authority's answer a message repeats.
	maxQuoted = 400
	// maxValue is how much of a user's value a message repeats. In quotes it may be six times
	// as long.
	maxValue = 60
)

// explain returns what a user is told about a failure: what happened, why, and what to do.
func explain(c *certificate, err error, next time.Time) string {
	text := describe(err)
	hint := ""
	var unproven *acme.AuthorizationError
	_, limited := limitedFor(err)
	switch {
	case errors.As(err, &unproven):
		hint = fmt.Sprintf("Make sure that [%s] resolves to an address of the gateway, and that its ports 80 and 443 can be reached from where the authority is. ", strings.Join(c.hosts, " "))
	case limited:
		hint = "The authority has had too many requests for this name or from this account. "
	case errors.Is(err, errAddress):
		hint = "An annotation cannot name an authority at an address of loopback, of the link, of pods or of Services. "
	case errors.Is(err, context.DeadlineExceeded):
		hint = "Make sure that the servers of the cluster can connect to the authority. "
	}
	return fmt.Sprintf("kedge got no certificate for the Secret %q of [%s] from %s: %s. %sThe next attempt is at %s",
		c.secret.Name, clip(strings.Join(c.hosts, " ")), c.directory, text, hint, next.UTC().Format(time.RFC3339))
}

// describe returns the text of an error. If the authority answered with something that is not
// ACME, the text has nothing of it: an annotation must not read what only this server may read.
func describe(err error) string {
	var problem *acme.Error
	if errors.As(err, &problem) && !strings.HasPrefix(problem.ProblemType, problemPrefix) {
		return fmt.Sprintf("it answered with the HTTP status %d, and not in the form of ACME", problem.StatusCode)
	}
	text := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, err.Error())
	return strings.TrimRight(clip(text), ".")
}

// limitedFor tells whether an authority has had too many requests, and for how long it wants
// none, if it says so.
func limitedFor(err error) (least time.Duration, limited bool) {
	var problem *acme.Error
	if !errors.As(err, &problem) {
		return 0, false
	}
	return acme.RateLimit(problem)
}

// clip returns the beginning of what an authority has sent.
func clip(text string) string { return cut(text, maxQuoted) }

// cut returns at most so many bytes of a text, without a part of a character.
func cut(text string, bytes int) string {
	if len(text) <= bytes {
		return strings.ToValidUTF8(text, "?")
	}
	return strings.ToValidUTF8(text[:bytes], "?") + "..."
}
