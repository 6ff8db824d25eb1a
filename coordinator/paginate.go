package coordinator

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

// pageToken identifies the last row of a page by its position in the list, in which newer rows come first. So if rows
// appear or disappear between two pages, no other row is repeated or skipped.
func pageToken(t time.Time, id string) string {
	return fmt.Sprintf("%020d.%s", uint64(1<<63-1)-uint64(t.UnixNano()), id)
}

// maxPage limits the encoded size of a page: an answer must fit into one message. The first row may be larger.
const maxPage = 512 << 10

// paginate sorts rows and returns the page that the query asks for. If the rows are large, the page has fewer rows than
// the query's limit.
func paginate[T any](
	rows []T, order func(a, b T) int, token func(T) string, size func(T) int, q *protocol.Query,
) (page []T, next string, err error) {
	slices.SortFunc(rows, order)
	if q.Page != "" {
		if at, _, ok := strings.Cut(q.Page, "."); !ok || len(at) != 20 {
			return nil, "", protocol.Invalid("page", "is not a page token")
		}
		i := slices.IndexFunc(rows, func(row T) bool { return token(row) > q.Page })
		if i < 0 {
			return nil, "", nil
		}
		rows = rows[i:]
	}
	total := 0
	for i, row := range rows {
		if total += size(row); i == q.Limit || i > 0 && total > maxPage {
			return rows[:i], token(rows[i-1]), nil
		}
	}
	return rows, "", nil
}

func encoded[T any](row T) int { return len(protocol.Encode(row)) }
