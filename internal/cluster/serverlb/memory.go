package serverlb

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// memory is the content of the file.
type memory struct {
	// Server is the one that the user named. What was learned from another may
	// be another cluster's.
	Server  string   `json:"server"`
	Servers []string `json:"servers"`
}

// recall returns the servers that were remembered, if any: without them one is
// known still.
func recall(file, server string) []string {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	var m memory
	if json.Unmarshal(text, &m) != nil || m.Server != server {
		return nil
	}
	return m.Servers
}

func remember(file, server string, servers []string) error {
	text, err := json.Marshal(memory{server, servers})
	if err != nil {
		return fmt.Errorf("remember servers: %w", err)
	}
	if err := datadir.WriteFile(file, append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("remember servers: %w", err)
	}
	return nil
}
