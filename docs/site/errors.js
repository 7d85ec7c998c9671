/* On the page of errors: a box for a message, and the rows whose words are most like it. */
addEventListener("DOMContentLoaded", () => {
    const page = document.querySelector("section#errors");
    if (!page) return;
    const words = text => new Set(text.toLowerCase().match(/[a-z0-9_.-]{2,}/g) || []);
    const rows = [...page.querySelectorAll("tbody tr")].map(row => {
        const copy = row.cloneNode(true);
        copy.querySelectorAll("em, td:last-child").forEach(field => field.remove());
        return {row, words: words(copy.textContent)};
    });
    const count = new Map();
    rows.forEach(one => one.words.forEach(word => count.set(word, (count.get(word) || 0) + 1)));
    const weight = set => [...set].reduce((sum, word) => sum + Math.log(rows.length / count.get(word)), 0);
    const box = document.createElement("input");
    const found = document.createElement("table");
    box.type = "search";
    box.placeholder = box.ariaLabel = "Paste your message here";
    found.className = "docutils";
    page.querySelector("h1").after(box, found);
    box.addEventListener("input", () => {
        const asked = words(box.value);
        const like = one => {
            const both = [...one.words].filter(word => asked.has(word));
            return both.length > 1 ? weight(both) / Math.sqrt(weight(one.words)) : 0;
        };
        const best = rows.map(one => [like(one), one.row]).filter(one => one[0]).sort((a, b) => b[0] - a[0]);
        found.replaceChildren(...best.slice(0, 5).map(one => {
            const [row, section] = [one[1].cloneNode(true), one[1].closest("section")];
            const link = document.createElement("a");
            link.href = `#${section.id}`;
            link.textContent = section.querySelector("h3").firstChild.textContent;
            row.lastElementChild.append(" ", link);
            return row;
        }));
    });
});
