"""How mail programs introduce what they quote, and how mails are signed, in the languages that people here write."""

import re

_MAIL = r"[^\s<>@]{1,100}@[^\s<>@]{1,200}"
_WROTE = (
    r"wrote|writes|schrieb|a écrit|escribió|escreveu|ha scritto|scrisse|napisał(?:\(a\)|a)?|schreef|skrev"
    r"|написал(?:\(а\)|а)?|пишет|kirjoitti"
    r"|yazdı|hat geschrieben|geschreven|napsal(?:\(a\)|a)?|viết"
)
_ON = r"On|Am|Le|El|Em|Il|W dniu|Op|Den|Dnia|Dne|Vào"
ATTRIBUTION = re.compile(
    rf"^\s*(?:(?:{_ON})\b[^\n]{{3,400}}(?:{_WROTE})\s*[:：]"
    rf"|\d{{1,4}}[./-]\d{{1,2}}[./-]\d{{1,4}}[^\n]{{0,300}}(?:{_WROTE})\s*[:：]"
    rf"|\d{{4}}-\d{{2}}-\d{{2}}[^\n]{{0,100}}{_MAIL}>?\s*[:：]"
    rf"|[^\n:]{{0,100}}<{_MAIL}>\s*(?:{_WROTE})\s*[:：]"
    rf"|[^\n:]{{0,200}}\d{{4}}[^\n]{{0,200}}<{_MAIL}>\s*(?:{_WROTE})?\s*[:：]"
    r"|[^\n]{0,400}(?:写道|寫道|于\s?[^\n]{0,80}写|书写|寫到)\s*[:：]"
    r"|[^\n]{0,400}(?:さんは書きました|さんが書きました|のメール|のメッセージ|さん\s*wrote|:\s*書きました)\s*[:：]?"
    r"|[^\n]{0,400}님이?\s*(?:작성|쓴 글|쓰기)\s*[:：]?"
    r")\s*$",
    re.IGNORECASE,
)
LAST_LETTERS = ":：たルジ성글기"
DIVIDER = re.compile(
    r"^[\s>]*(?:[-_=*]{2,}\s*(?:Original Message|Original Appointment|Forwarded message|Reply message"
    r"|Ursprüngliche Nachricht|Originalnachricht"
    r"|Message d.origine|Message original|Mensaje original|Mensagem original|Messaggio originale|Oorspronkelijk bericht|Исходное сообщение"
    r"|Пересылаемое сообщение|Wiadomość oryginalna|原始邮件|原始郵件|转发邮件信息|原邮件|回复的原邮件"
    r"|元のメッセージ|Original-Nachricht|원본 메시지)"
    r"\s*[-_=*]{0,}|Begin forwarded message:|在原始邮件中[^\n]*)\s*[:：]?\s*$",
    re.IGNORECASE,
)
_FROM = r"From|Von|De|Da|Van|Fra|Från|Od|От|Lähettäjä|Kimden|发件人|發件人|寄件者|寄件人|差出人|送信者|보낸 사람|보낸사람"
_OTHER = (
    r"Sent|Date|To|Subject|Cc|Gesendet|Datum|An|Betreff|Envoyé|Date d.envoi|À|A|Objet|Enviado|Enviado el|Para|Asunto|Assunto"
    r"|Inviato|Oggetto"
    r"|Verzonden|Aan|Onderwerp|Sendt|Til|Emne|Skickat|Till|Ämne|Wysłano|Data|Do|Temat|Отправлено|Кому|Дата|Тема|Lähetetty|Aihe|Konu|Kime"
    r"|发送时间|发件日期|日期|收件人|抄送|主题|時間|寄件日期|傳送時間|收件者|副本|主旨|主題"
    r"|日時|送信日時|送信日|宛先|件名|보낸 날짜|받는 사람|제목|날짜|발송일"
)
HEADER_FROM = re.compile(rf"^[\s>*]*(?:{_FROM})\*?\s*[:：]\*?\s*\S.*$", re.IGNORECASE)
HEADER_OTHER = re.compile(rf"^[\s>*]*(?:{_OTHER})\*?\s*[:：]\*?.*$", re.IGNORECASE)
SIGNATURE = re.compile(
    r"^\s*(?:--|__|—|――)\s*$"
    r"|^\s*(?:Sent (?:from|via) (?:my|the|Yahoo|Outlook|Mail for|Proton|Samsung|Gmail)\b[^\n,;!?]{0,60}"
    r"|Get Outlook for (?:iOS|Android)[^\n]{0,60}|Sent with [^\n]{0,80}"
    r"|(?:Von meinem|Gesendet mit|Diese Nachricht wurde von meinem) [^\n]{0,60}(?:gesendet)?|Envoyé (?:de mon|depuis mon) [^\n]{0,60}"
    r"|Enviado (?:desde|do|de) (?:mi|meu) [^\n]{0,60}|Inviato da(?:l mio)? [^\n]{0,60}|Отправлено (?:с|из) [^\n]{0,60}"
    r"|Verstuurd vanaf [^\n]{0,60}"
    r"|(?:从|從)?我的\s?[\w ]{1,30}(?:发送|發送|傳送|发出)|(?:发自|發自|寄自|傳送自|来自)\s?我的[^\n]{0,40}"
    r"|发自\s?\S[^\n]{0,30}|(?:从|自)[^\n]{0,20}版?QQ邮箱[^\n]{0,20}"
    r"|(?:私の)?\s?(?:iPhone|iPad|Android|スマートフォン)[^\n]{0,10}から送信|나의 [^\n]{0,20}에서 보냄)\s*\.?\s*$",
    re.IGNORECASE,
)
MAILING_LIST = re.compile(r"^\s*_{20,}\s*$")
RULE = re.compile(r"^\s*[-_=*]{3,}\s*$")
DASHED_NAME = re.compile(r"^\s*--?\s?[A-Z\u3040-\u9fff][^\s,.:;/]{0,30}(?: [A-Z][^\s,.:;/]{0,30}){0,2}\s*$")
